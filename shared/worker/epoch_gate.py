"""Refuse what a scheduler says that others have succeeded."""

from typing import Protocol

from slipstream.shared.messages.common import Failed

STALE_EPOCH = "stale_epoch"


class FromScheduler(Protocol):
    """A message that says which scheduler is behind it."""

    @property
    def scheduler_epoch(self) -> int:
        """Its epoch; 0 says nothing, as where there is no leader bucket."""


class EpochGate:
    """Remembers the highest epoch seen: whoever slept through a succession is told so."""

    def __init__(self) -> None:
        self.highest = 0

    def is_stale(self, message: FromScheduler) -> bool:
        """Tell whether a later scheduler is known than the one behind a message."""
        epoch = message.scheduler_epoch
        self.highest = max(self.highest, epoch)
        return 0 < epoch < self.highest

    def refusal(self, message: FromScheduler) -> Failed | None:
        """Return the answer to a message of a scheduler that was succeeded, or None."""
        if not self.is_stale(message):
            return None
        return Failed(
            code=STALE_EPOCH,
            message=f"scheduler epoch {message.scheduler_epoch} is over: "
            f"{self.highest} has been seen",
        )
