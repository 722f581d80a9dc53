"""The texts on which formats are judged: prose and code that every Python installation has."""

import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path

from slipstream.shared.errors import ConfigurationError

# None of it may be among the texts of calibration, by which the weights were rounded: a test
# compares the words. Short pieces stand first, so that a few thousand tokens hold several; no
# topic repeats another's paragraphs, as many in that module do.
TOPICS_MODULE = "pydoc_data.topics"
TOPICS = (
    *("objects", "execmodel", "import", "assignment", "comparisons", "calls", "identifiers"),
    *("types", "debugger", "specialnames"),
)
CODE_MODULES = (
    *("bisect", "sched", "fnmatch", "queue", "shlex", "graphlib", "textwrap", "heapq"),
    "statistics",
)


@dataclass(frozen=True, slots=True)
class Text:
    """What is evaluated, under the name that its row bears."""

    name: str
    content: str


def default_texts() -> list[Text]:
    """Return prose and code. Raises ConfigurationError where an installation lacks a part."""
    return [
        Text("prose", "\n".join(_topic(name) for name in TOPICS)),
        Text("code", "\n".join(_source(name) for name in CODE_MODULES)),
    ]


def read_text(path: Path) -> Text:
    """Read a file of one's own. Raises ConfigurationError."""
    try:
        return Text(str(path), path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"--text {path} can't be read ({error.strerror}); name a file of plain text"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"--text {path} is not UTF-8 (byte {error.start}); convert it, or name another file"
        ) from error


def _topic(name: str) -> str:
    try:
        text: str = importlib.import_module(TOPICS_MODULE).topics[name]
    except (ImportError, AttributeError, KeyError) as error:
        raise _missing("topic", f"{name} of {TOPICS_MODULE}") from error
    return text


def _source(name: str) -> str:
    try:
        return inspect.getsource(importlib.import_module(name))
    except (ImportError, OSError, TypeError) as error:  # TypeError: a module in C has none
        raise _missing("source of", name) from error


def _missing(kind: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"this installation of Python lacks the {kind} {name}, part of the default texts; "
        "give texts of your own with --text FILE"
    )
