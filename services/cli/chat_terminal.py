"""Where the lines of a chat come from, and where what is said goes: a terminal, or a pipe."""

import contextlib
import sys
from collections.abc import Sequence
from typing import Protocol

from slipstream.shared.errors import ConfigurationError

_PROMPT = "> "


class ChatTerminal(Protocol):
    """Reads a chat's lines and shows its answers."""

    def read(self) -> str | None:
        """Return the next line; None at the end. Ctrl-C raises KeyboardInterrupt."""

    def write(self, text: str) -> None:
        """Show a piece of an answer."""

    def notice(self, text: str) -> None:
        """Say something that is no answer."""


class Pipe:
    """Each line is a turn; stdout has answers and nothing else."""

    def read(self) -> str | None:
        """Return the next line that is not empty. Raises ConfigurationError for what is no text."""
        try:
            # Not by iteration, which would read ahead of who types.
            while line := sys.stdin.readline():
                if line.strip():
                    line.encode()  # some locales let any bytes in, as half characters
                    return line.strip()
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            raise ConfigurationError(f"the input is no {error.encoding} text") from error
        return None

    def write(self, text: str) -> None:
        """Print, at once."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def notice(self, text: str) -> None:
        """Print on stderr."""
        print(f"==> {text}", file=sys.stderr, flush=True)  # noqa: T201 - this is the console


class Terminal(Pipe):
    """A person: a prompt, lines that can be edited and called back, words in grey."""

    def __init__(self, commands: Sequence[str]) -> None:
        # Imported here: scripts need neither.
        from rich.console import Console  # noqa: PLC0415 - slow to load

        self._console = Console()
        with contextlib.suppress(ImportError):  # not every Python has it
            _edit_lines(commands)

    def read(self) -> str | None:
        """Return the next line."""
        try:
            line = ""
            while not line:
                line = input(_PROMPT).strip()
        except EOFError:
            print()  # noqa: T201 - the shell's prompt begins a line of its own
            return None
        return line

    def notice(self, text: str) -> None:
        """Print in grey."""
        self._console.print(text, style="dim", markup=False, highlight=False)


def _edit_lines(commands: Sequence[str]) -> None:
    import readline  # noqa: PLC0415 - it takes the terminal over

    def complete(text: str, state: int) -> str | None:
        found = [name for name in commands if text and name.startswith(text)]
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
