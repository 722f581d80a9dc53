"""How far a batch is: a bar for people who watch, a line now and then for logs."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from slipstream.services.cli.console import progress

if TYPE_CHECKING:
    from slipstream.services.cli.batch_run import Summary

_LINE_EVERY_S = 5.0


class Progress(Protocol):
    """What is told of a batch; a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def update(self, summary: "Summary") -> None:
        """Show how far it is."""


def progress_for(*, is_terminal: bool) -> Progress:
    """Return a bar or lines, on stderr either way."""
    return _Bar() if is_terminal else _Lines()


class _Lines:
    def __init__(self) -> None:
        self._told_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_ending: object) -> None: ...

    def update(self, summary: "Summary") -> None:
        if time.monotonic() - self._told_at >= _LINE_EVERY_S:
            self._told_at = time.monotonic()
            progress(describe(summary))


class _Bar:
    def __init__(self) -> None:
        # Imported here: --help and scripts need no bar.
        from rich.console import Console  # noqa: PLC0415 - slow to load, for a terminal only
        from rich.progress import (  # noqa: PLC0415 - slow to load, for a terminal only
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress  # noqa: PLC0415 - slow to load, for a terminal only

        self._bar = RichProgress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("[red]{task.fields[failed]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            transient=True,
        )
        self._task = self._bar.add_task("batch", total=None, failed="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_ending: object) -> None:
        self._bar.stop()

    def update(self, summary: "Summary") -> None:
        failed = f"{summary.num_failed} failed" if summary.num_failed else ""
        done = summary.num_answered + summary.num_failed
        self._bar.update(self._task, total=summary.num_lines, completed=done, failed=failed)


def describe(summary: "Summary") -> str:
    """Return one line of words."""
    parts = [f"{summary.num_answered} of {summary.num_lines} answered"]
    if summary.num_failed:
        parts.append(f"{summary.num_failed} failed")
    if summary.num_found:
        parts.append(f"{summary.num_found} of an earlier run")
    if summary.num_unanswered:
        parts.append(f"{summary.num_unanswered} left")
    return ", ".join(parts)
