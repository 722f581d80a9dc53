"""Which blocks of a transfer are still missing, and how long it is worth asking for them."""

from collections.abc import Sequence

from slipstream.shared.kv.transfer.messages import FetchBlocks
from slipstream.shared.kv.transfer.plane import (
    MAX_REQUEST_BLOCKS,
    MAX_REQUEST_BYTES,
    Deadline,
    Fetched,
    FetchRequest,
    PlaneIdentity,
    TransferBrokenError,
)

# A link that damages the same block so often is not worth its time.
MAX_NUM_DAMAGED = 4
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5


class Progress:
    """The state of one transfer, owned by whoever receives for it at the moment."""

    def __init__(
        self, request: FetchRequest, into: Sequence[memoryview], identity: PlaneIdentity
    ) -> None:
        self.request = request
        self._block_bytes = identity.block_bytes
        self._places = [_place(view, identity.block_bytes) for view in into]
        num_blocks = len(request.block_ids)
        if not num_blocks == len(request.generations) == len(self._places):
            raise ValueError(
                f"{num_blocks} blocks, {len(request.generations)} generations and "
                f"{len(self._places)} places"
            )
        self._missing = dict.fromkeys(range(num_blocks))
        self._num_damaged: dict[int, int] = {}
        self._num_questions = 0
        self._num_needed = 0
        self._pause_s = _FIRST_PAUSE_S
        self._num_missing_before = num_blocks

    @property
    def is_complete(self) -> bool:
        """Whether every block is there."""
        return not self._missing

    @property
    def fetched(self) -> Fetched:
        """What a complete transfer took."""
        num_blocks = len(self._places)
        num_resumes = self._num_questions - self._num_needed
        return Fetched(num_blocks, num_blocks * self._block_bytes, num_resumes)

    def next_question(self, deadline: Deadline) -> "Question":
        """Return the question for the next missing blocks, as many as one may ask for."""
        limit = max(1, min(MAX_REQUEST_BLOCKS, MAX_REQUEST_BYTES // self._block_bytes))
        indices = list(self._missing)[:limit]
        self._num_questions += 1
        return Question(
            fetch=FetchBlocks(
                self.request.transfer_id,
                self.request.lease_id,
                [self.request.block_ids[index] for index in indices],
                [self.request.generations[index] for index in indices],
                max(1, int(deadline.left() * 1000)),
            ),
            places=[self._places[index] for index in indices],
            indices=indices,
        )

    def finish(self, question: "Question") -> None:
        """
        Count what an answered question brought: its source stands by these blocks.

        Raises TransferBrokenError for a block that came damaged too often.
        """
        if not question.damaged:
            self._num_needed += 1
        self.keep(question)
        for position in question.damaged:
            index = question.indices[position]
            self._num_damaged[index] = self._num_damaged.get(index, 0) + 1
            if self._num_damaged[index] >= MAX_NUM_DAMAGED:
                raise TransferBrokenError(
                    f"block {self.request.block_ids[index]} came damaged {MAX_NUM_DAMAGED} times"
                )

    def pause_s(self) -> float:
        """
        Return the seconds to wait before the source is tried again.

        Longer each time, unless something came: a source that is gone isn't hammered.
        """
        if len(self._missing) < self._num_missing_before:
            self._num_missing_before = len(self._missing)
            self._pause_s = _FIRST_PAUSE_S
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return pause_s

    def keep(self, question: "Question") -> None:
        """
        Count the blocks that came whole, though the rest of the answer did not.

        Their checksums say that the source read them while they were what was asked for.
        """
        for position in question.arrived:
            self._missing.pop(question.indices[position], None)


class Question:
    """One question and what has come of it: `arrived` and `damaged` are positions in it."""

    def __init__(
        self, fetch: FetchBlocks, places: Sequence[memoryview], indices: Sequence[int]
    ) -> None:
        self.fetch = fetch
        self.places = places
        self.indices = indices
        self.arrived: list[int] = []
        self.damaged: list[int] = []

    @property
    def num_come(self) -> int:
        """How many blocks have come, damaged ones included."""
        return len(self.arrived) + len(self.damaged)

    def note(self, position: int, *, is_whole: bool) -> None:
        """Count a block of which the last byte has come."""
        (self.arrived if is_whole else self.damaged).append(position)


def _place(view: memoryview, block_bytes: int) -> memoryview:
    if view.readonly or view.nbytes != block_bytes:
        raise ValueError(f"a place takes {block_bytes} bytes: {view.nbytes} given")
    return view.cast("B")
