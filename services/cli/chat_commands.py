"""What a line that begins with a slash does to a chat."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from slipstream.services.cli.chat_history import ChatHistory
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.messages.codec import encode

_HELP = """\
/reset          forget what was said
/system TEXT    tell the model how to answer; without a text nothing any more
/save FILE      write the messages as JSON
/help           this
/quit           leave, as Ctrl-D does
Ctrl-C ends an answer that is being given; a second one leaves."""


class ChatEnded(Exception):  # noqa: N818 - no error: somebody wants to leave
    """Raised by the command that leaves."""


class ChatCommands:
    """The commands of one chat; each returns the words that answer it."""

    def __init__(self, history: ChatHistory) -> None:
        self._history = history
        self._saved: set[Path] = set()
        self._commands: dict[str, Callable[[str], str]] = {
            "/reset": self._reset,
            "/system": self._system,
            "/save": self._save,
            "/help": lambda _rest: _HELP,
            "/quit": self._quit,
        }

    @property
    def names(self) -> list[str]:
        """What can stand at the beginning of a line."""
        return list(self._commands)

    def run(self, line: str) -> str | None:
        """
        Do what a line says; None where it is no command but a question.

        Raises ConfigurationError for one that can't be done, ChatEnded.
        """
        if not line.startswith("/"):
            return None
        name, _, rest = line.partition(" ")
        command = self._commands.get(name)
        if command is None:
            raise ConfigurationError(f"{name} is none of {', '.join(self._commands)}")
        return command(rest.strip())

    def _reset(self, _rest: str) -> str:
        self._history.reset()
        return "what was said is forgotten"

    def _system(self, text: str) -> str:
        self._history.system = text or None
        return "the model is told so from now on" if text else "the model is told nothing more"

    def _save(self, name: str) -> str:
        if not name:
            raise ConfigurationError("/save needs the name of a file: /save chat.json")
        path = Path(name).expanduser()
        messages = self._history.messages()
        try:
            # Ours may be written again; somebody else's is left alone.
            with path.open("wb" if path in self._saved else "xb") as file:
                file.write(msgspec.json.format(encode(messages, "json"), indent=2) + b"\n")
        except FileExistsError as error:
            raise ConfigurationError(f"{path} is there already; name another file") from error
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise ConfigurationError(f"{path} can't be written ({reason})") from error
        self._saved.add(path)
        return f"{len(messages)} messages are in {path}"

    def _quit(self, _rest: str) -> str:
        raise ChatEnded
