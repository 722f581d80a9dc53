"""Who is in flight together: the next request at once, or the next group when all have ended."""

import asyncio
from typing import cast

import pytest
from batching_ways import Seats, Way, continuous, padded, prompts_alone, static
from trace_client import Answer, TraceClient, TraceRequest

from slipstream.shared.measure.load.traces import Lengths

_SEATS = Seats(2, max_num_tokens=100)
# In units of time; the first is as long as two others together.
_OUTPUTS = (4, 2, 2, 2)


class _Clocked:
    """Stands in for the client and the stack: a token takes a turn of the loop, in any batch."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Lengths]] = []
        self.with_each: dict[int, set[int]] = {}
        self._in_flight: set[int] = set()

    async def ask(self, request: TraceRequest, lengths: Lengths | None = None) -> Answer:
        lengths = lengths or request.lengths
        (name,) = request.token_ids
        self.asked.append((name, lengths))
        self._in_flight.add(name)
        for each in self._in_flight:
            self.with_each.setdefault(each, set()).update(self._in_flight - {each})
        for _ in range(lengths.num_output_tokens):
            await asyncio.sleep(0)
        self._in_flight.remove(name)
        return Answer(request, lengths)


async def _take(way: Way) -> tuple[_Clocked, list[int]]:
    client = _Clocked()
    requests = [TraceRequest(Lengths(1, each), [name]) for name, each in enumerate(_OUTPUTS)]
    answers = await way(cast("TraceClient", client), requests, _SEATS)
    return client, [answer.request.token_ids[0] for answer in answers]


@pytest.mark.parametrize("way", [continuous, static, padded, prompts_alone])
async def test_every_request_is_answered_once_in_order(way: Way) -> None:
    client, answered = await _take(way)

    assert [0, 1, 2, 3] == answered
    assert [0, 1, 2, 3] == sorted(name for name, _ in client.asked)


async def test_continuous_gives_a_free_seat_to_the_next() -> None:
    client, _ = await _take(continuous)

    assert {1, 2} <= client.with_each[0]


@pytest.mark.parametrize("way", [static, padded])
async def test_a_group_is_alone_until_its_longest_has_ended(way: Way) -> None:
    client, _ = await _take(way)

    assert {0: {1}, 1: {0}, 2: {3}, 3: {2}} == client.with_each


async def test_padded_asks_for_the_longest_of_the_group() -> None:
    client, _ = await _take(padded)

    assert [4, 4, 2, 2] == [lengths.num_output_tokens for _, lengths in client.asked]


async def test_prompts_alone_end_with_their_first_token() -> None:
    client, _ = await _take(prompts_alone)

    assert [Lengths(1, 1)] * 4 == [lengths for _, lengths in client.asked]
