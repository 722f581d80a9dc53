"""Long work in slices: a generator that pauses, so that an event loop serves others meanwhile."""

import asyncio
from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

# Blocks looked at between two pauses: one to three milliseconds.
SLICE = 2000

T = TypeVar("T")
ItemT = TypeVar("ItemT")
Sliced = Generator[None, None, T]


def finish(work: Sliced[T]) -> T:
    """Do all of it at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


async def finish_between_turns(work: Sliced[T]) -> T:
    """Do a slice a turn of the event loop."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


def batches(items: Sequence[ItemT]) -> Iterator[Sequence[ItemT]]:
    """Yield items in groups of a slice each."""
    for start in range(0, len(items), SLICE):
        yield items[start : start + SLICE]


class Pace:
    """Says when a slice is over, for work that comes in pieces of many sizes."""

    def __init__(self) -> None:
        self._num_left = SLICE

    def is_over(self, num_blocks: int) -> bool:
        """Count some blocks; tell whether to pause."""
        self._num_left -= num_blocks
        if self._num_left > 0:
            return False
        self._num_left = SLICE
        return True
