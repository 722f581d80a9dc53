"""What a scheduler signs its messages with, and what it does when it is told that it is over."""

from collections.abc import Callable
from dataclasses import dataclass

from slipstream.shared.bus.endpoint import RemoteError
from slipstream.shared.worker.epoch_gate import STALE_EPOCH


def _no_epoch() -> int:
    return 0


def _nobody_succeeds() -> None:
    """Without a lease there are no epochs, and none is stale."""


@dataclass(frozen=True)
class Succession:
    """The epoch of a term, and whom to tell that a later one has been seen."""

    read_epoch: Callable[[], int] = _no_epoch
    on_stale: Callable[[], None] = _nobody_succeeds

    @property
    def epoch(self) -> int:
        """The epoch; 0 until there is a lease."""
        return self.read_epoch()

    def check(self, error: Exception) -> None:
        """Tell, if this is a worker's word that another scheduler has taken over."""
        if isinstance(error, RemoteError) and error.code == STALE_EPOCH:
            self.on_stale()


ALONE = Succession()
