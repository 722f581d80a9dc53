"""What is fuzzed: a decoder, inputs that it takes, and what it may refuse others with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "wire/golden"
CORPUS = HERE / "corpus"

Form = Literal["bytes", "json", "msgpack"]


@dataclass(frozen=True)
class Target:
    """
    A decoder as a function of bytes.

    It returns what it has made of them, raises one of the refusals, and does neither slowly. It may
    check by itself what holds of an input that it took: an AssertionError is a defect, as every
    other exception is.
    """

    name: str
    decode: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...]
    samples: Sequence[bytes]
    form: Form = "bytes"  # of the samples: what is JSON or msgpack is changed by values too
    share: float = 1.0  # of all inputs, beside those of other targets
    words: Sequence[bytes] = ()  # that mean something to it
    cpu_limit_s: float = 1.0  # of one input

    @property
    def corpus(self) -> list[bytes]:
        """What once found something."""
        folder = CORPUS / self.name
        return [path.read_bytes() for path in sorted(folder.glob("*"))] if folder.is_dir() else []


def golden(suffix: str, *names: str) -> list[bytes]:
    """Return the frozen bytes of messages, of all of them unless some are named."""
    paths = sorted(GOLDEN.glob(f"*.{suffix}"))
    kept = [path for path in paths if not names or path.name.partition(".")[0] in names]
    assert kept, f"no golden bytes of {names}"
    return [
        bytes.fromhex(path.read_text(encoding="utf-8"))
        if path.suffix == ".hex"
        else path.read_bytes().rstrip(b"\n")
        for path in kept
    ]


def golden_msgpack(*names: str) -> list[bytes]:
    """Return frozen bytes in msgpack."""
    return golden("msgpack.hex", *names)


def golden_json(*names: str) -> list[bytes]:
    """Return frozen bytes in JSON."""
    return golden("json", *names)
