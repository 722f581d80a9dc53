"""A host whose workers compute with the same cores: beside others each is slower."""

from typing import Protocol

from slipstream.shared.ids import HostId


class Neighbour(Protocol):
    """A worker of a host."""

    def neighbours_changed(self) -> None:
        """Another worker began or ceased to compute."""


class Host:
    """Knows who computes. Nobody is told where that slows nobody down."""

    def __init__(self, host_id: HostId, *, is_shared: bool) -> None:
        self.host_id = host_id
        self._is_shared = is_shared
        self._workers: list[Neighbour] = []
        self._computing: set[Neighbour] = set()

    def join(self, worker: Neighbour) -> None:
        """Count a worker as one of the host's."""
        self._workers.append(worker)

    def num_others(self, worker: Neighbour) -> int:
        """Return how many others compute."""
        return len(self._computing) - (worker in self._computing)

    def note(self, worker: Neighbour, *, is_computing: bool) -> None:
        """Note whether a worker computes; its neighbours hear of a change."""
        if not self._is_shared or (worker in self._computing) == is_computing:
            return
        (self._computing.add if is_computing else self._computing.discard)(worker)
        for each in self._workers:
            if each is not worker:
                each.neighbours_changed()
