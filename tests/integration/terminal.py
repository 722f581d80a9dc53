"""A command of ours on a terminal, and the person before it."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from .command_line import SLIPSTREAM

_SIZES = ("COLUMNS", "LINES")


class Terminal:
    """A person at a terminal."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(160, 50)
        # Of the terminal that runs the tests, or none: it is ours that counts.
        unsized = {key: each for key, each in environment.items() if key not in _SIZES}
        self.process = subprocess.Popen(
            [*SLIPSTREAM, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**unsized, "TERM": "xterm"},
            start_new_session=True,
        )
        # Ours too stays open: the settings that are left behind can be read.
        self._theirs = theirs
        self._seen = ""

    def until(self, pattern: str) -> str:
        """Return what is shown up to a pattern, and forget it."""
        deadline_s = time.monotonic() + 20
        while not (found := re.search(pattern, self._seen)):
            assert time.monotonic() < deadline_s, f"{pattern} is not in {self._seen!r}"
            if select.select([self._ours], [], [], 0.1)[0]:
                self._seen += os.read(self._ours, 65536).decode(errors="replace")
        shown, self._seen = self._seen[: found.end()], self._seen[found.end() :]
        return shown

    def type(self, line: str) -> None:
        os.write(self._ours, line.encode())

    def resize(self, num_columns: int, num_lines: int) -> None:
        size = struct.pack("HHHH", num_lines, num_columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    @property
    def is_echoing(self) -> bool:
        """Whether what is typed is shown, as a shell left behind expects it."""
        return bool(termios.tcgetattr(self._theirs)[3] & termios.ECHO)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(5)
        os.close(self._ours)
