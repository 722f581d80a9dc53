"""A load served by a live stack: each request at its time, whatever became of those before."""

import asyncio
import random
import time
from collections.abc import Sequence

from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.subjects import GENERATE
from slipstream.shared.errors import DeadlineExceededError, SlipstreamError
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Finished, GenerateRequest, TokenFrame
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.simulation.live_record import LiveRecord
from slipstream.shared.simulation.requests import SimulatedRequest

_ANSWER_S = 600.0
# Bytes: every model has at least so many tokens, and a random prompt begins like no other.
_NUM_TOKENS = 256


class LoadFailedError(SlipstreamError):
    """A request of the load was not answered."""

    code = "load_failed"


async def serve_live(bus: Bus, requests: Sequence[SimulatedRequest], seed: int) -> list[LiveRecord]:
    """
    Ask for all of them at their times; return what came, in their order.

    Raises LoadFailedError and DeadlineExceededError as soon as one isn't answered.
    """
    rng = random.Random(seed)  # noqa: S311 - prompts, no secret
    prompts = [[rng.randrange(_NUM_TOKENS) for _ in range(r.num_prompt_tokens)] for r in requests]
    began_s = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_serve(bus, request, prompt, began_s))
                for request, prompt in zip(requests, prompts, strict=True)
            ]
    except ExceptionGroup as failures:
        # The first one ended the others.
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _serve(
    bus: Bus, request: SimulatedRequest, prompt: list[int], began_s: float
) -> LiveRecord:
    message = encode(
        GenerateRequest(
            prompt_token_ids=PackedInts(prompt),
            stream=True,
            route=request.route,
            tenant=request.tenant or None,
            latency_class=request.latency_class,
            temperature=0,
            ignore_eos=True,
            max_tokens=request.num_output_tokens,
            speculation="off",
        )
    )
    arrived: asyncio.Queue[tuple[float, Incoming]] = asyncio.Queue()

    async def note(incoming: Incoming) -> None:
        arrived.put_nowait((time.perf_counter(), incoming))

    inbox = bus.new_inbox()
    subscription = await bus.subscribe(inbox, note)
    try:
        await asyncio.sleep(began_s + request.arrived_at - time.perf_counter())
        sent_s = time.perf_counter()
        await bus.publish(GENERATE.subject(), message, reply=inbox)
        times_s, ending = await _answer(arrived)
    finally:
        await subscription.stop()
    timings = ending.timings
    return LiveRecord(
        arrived_at=sent_s - began_s,
        first_at=times_s[0] - began_s,
        ended_at=times_s[1] - began_s,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=request.num_output_tokens,
        queue_s=timings.queue_ms / 1000,
        prefill_s=timings.prefill_ms / 1000,
        hand_over_s=timings.hand_over_ms / 1000,
        tenant=request.tenant,
        latency_class=request.latency_class,
    )


async def _answer(
    arrived: "asyncio.Queue[tuple[float, Incoming]]",
) -> tuple[tuple[float, float], Finished]:
    """Return when the first and the last token came, and the ending."""
    times_s: list[float] = []
    while True:
        try:
            async with asyncio.timeout(_ANSWER_S):
                at_s, incoming = await arrived.get()
        except TimeoutError as error:
            raise DeadlineExceededError("answer to the load", _ANSWER_S) from error
        match decoder_of(ClientAnswer).decode(incoming.payload):
            case TokenFrame(token_ids=token_ids) if token_ids:
                times_s.append(at_s)
            case Finished() as ending:
                if not times_s:
                    raise LoadFailedError("an answer of the load has no tokens")
                return (times_s[0], times_s[-1]), ending
            case Failed(message=message, code=code):
                raise LoadFailedError(f"a request of the load failed with {code}: {message}")
