"""Workers by how busy they are: who is the least so, without looking at all. Pure."""

import heapq

from slipstream.shared.ids import WorkerId


class LoadIndex:
    """A heap whose outdated entries stay until they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, WorkerId]] = []
        self._loads: dict[WorkerId, float] = {}

    def __len__(self) -> int:
        return len(self._loads)

    def set(self, worker_id: WorkerId, load: float) -> None:
        """Note how busy a worker is."""
        if self._loads.get(worker_id) == load:
            return
        self._loads[worker_id] = load
        heapq.heappush(self._heap, (load, worker_id))
        if len(self._heap) > 4 * len(self._loads) + 64:
            self._heap = [(each, known) for known, each in self._loads.items()]
            heapq.heapify(self._heap)

    def remove(self, worker_id: WorkerId) -> None:
        """Forget a worker."""
        self._loads.pop(worker_id, None)

    def workers(self) -> list[WorkerId]:
        """Return all workers, in no order."""
        return list(self._loads)

    def any(self) -> WorkerId | None:
        """Return some worker, the longest here; None without any."""
        return next(iter(self._loads), None)

    def least(self, max_num: int) -> list[WorkerId]:
        """Return up to so many workers, the least busy first."""
        taken: dict[WorkerId, float] = {}
        while self._heap and len(taken) < max_num:
            load, worker_id = heapq.heappop(self._heap)
            if self._loads.get(worker_id) == load:
                taken[worker_id] = load
        for worker_id, load in taken.items():
            heapq.heappush(self._heap, (load, worker_id))
        return list(taken)
