"""The children's log lines in one file, looked at only when something goes wrong."""

from slipstream.services.cli.child import LogLine
from slipstream.services.cli.run_directory import RunDirectory

_PROBLEMS = ('"level":"warning"', '"level":"error"', '"level":"critical"', "[ERR]", "[FTL]")


class LogFile:
    """Appends to the run directory's file; it goes with the directory."""

    def __init__(self) -> None:
        self._run: RunDirectory | None = None

    def open(self, run: RunDirectory) -> LogLine:
        """Return what takes the lines."""
        self._run = run
        run.log_file.touch(mode=0o600)
        file = run.log_file.open("a", encoding="utf-8", buffering=1)

        def write(name: str, line: str) -> None:
            # The server's lines are no JSON and don't say whose they are.
            file.write(f"{line}\n" if line.startswith("{") else f"{name}: {line}\n")

        return write

    def problems(self, num_lines: int) -> list[str]:
        """Return the last warnings and errors."""
        if self._run is None or not self._run.log_file.exists():
            return []
        lines = self._run.log_file.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if any(mark in line for mark in _PROBLEMS)][-num_lines:]
