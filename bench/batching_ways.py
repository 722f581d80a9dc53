"""How requests take the seats of a batch."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from batch_model import groups, pad
from trace_client import Answer, TraceClient, TraceRequest


@dataclass(frozen=True)
class Seats:
    """How many requests a batch takes, and how long each may get."""

    number: int
    max_num_tokens: int


Way = Callable[[TraceClient, Sequence[TraceRequest], Seats], Awaitable[list[Answer]]]


async def continuous(
    client: TraceClient, requests: Sequence[TraceRequest], seats: Seats
) -> list[Answer]:
    """Let each seat take the next request as soon as it is free; return answers in their order."""
    waiting = iter(enumerate(requests))
    answers: dict[int, Answer] = {}

    async def sit() -> None:
        for number, request in waiting:
            answers[number] = await client.ask(request)

    await asyncio.gather(*(sit() for _ in range(seats.number)))
    return [answers[number] for number in range(len(requests))]


async def static(
    client: TraceClient, requests: Sequence[TraceRequest], seats: Seats
) -> list[Answer]:
    """Begin a group when the one before it has ended."""
    answers: list[Answer] = []
    for group in groups(requests, seats.number):
        answers += await asyncio.gather(*map(client.ask, group))
    return answers


async def padded(
    client: TraceClient, requests: Sequence[TraceRequest], seats: Seats
) -> list[Answer]:
    """Do the same with every prompt and every answer as long as the longest of its group."""
    answers: list[Answer] = []
    for group in groups(requests, seats.number):
        lengths = pad([request.lengths for request in group], seats.max_num_tokens)
        answers += await asyncio.gather(*map(client.ask, group, lengths))
    return answers


async def prompts_alone(
    client: TraceClient, requests: Sequence[TraceRequest], seats: Seats
) -> list[Answer]:
    """Take one token of each: what the prompts cost, however they are batched."""
    prompts = [TraceRequest(each.lengths.without_output(), each.token_ids) for each in requests]
    return await continuous(client, prompts, seats)
