"""While requests wait for blocks, the pool holds what running sequences use, and little else."""

import asyncio
import random
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from slipstream.services.kv_manager.pool import BlockState
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.messages.generate import Completion

from .service_stack import Client, ServiceStack, until_empty

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

SIZE = 32
NUM_BLOCKS = 1500
NUM_REQUESTS = 140
_OCCUPIED = (BlockState.GRANTED, BlockState.LEASED, BlockState.COMMITTED, BlockState.QUARANTINED)
Start = Callable[..., Awaitable[ServiceStack]]


@dataclass(frozen=True)
class Sample:
    """The pool at a moment at which somebody waited for blocks, as shares."""

    used: float  # of the slots that are taken: they hold KV of a sequence that is being served
    slack: float  # of the pool: neither taken nor promised


def sample_of(stack: ServiceStack) -> Sample | None:
    """Look at the books and at the sequences of both workers; None while nobody waits."""
    prefill, decode = (stack.one(role)._parts for role in ("prefill", "decode"))
    num_waiting = prefill.host.gate.num_waiting + decode.host.gate.num_waiting
    pool = stack.one("kv").host.book.pool
    counts = pool.counts()
    num_taken = sum(counts[state] for state in _OCCUPIED)
    if not num_waiting or not num_taken:
        return None
    sequences = [each for each in decode.jobs.sequences() if each.lease_id is not None]
    computed = {each.attempt: each.num_computed_tokens for each in sequences}
    for each in prefill.jobs._sequences.values():
        computed[each.attempt] = max(each.num_computed_tokens, computed.get(each.attempt, 0))
    return Sample(
        used=sum(computed.values()) / (num_taken * SIZE),
        slack=(pool.num_available - pool.num_reserved) / pool.num_blocks,
    )


@pytest.mark.slow
async def test_blocks_hold_what_is_used_while_requests_wait_for_them(
    start: Start, client: Client, record_property: Callable[[str, Any], None]
) -> None:
    """Lengths as of a conversation trace: no prompt is alike, so that nothing is shared."""
    cost = FakeEngineConfig(step_ms=1.0, row_us=10.0, context_token_ns=0.0)
    stack = await start(
        kv={"num_blocks": NUM_BLOCKS},
        every={"fake": cost},
        decode={"num_seats": 256, "speculation": "off"},
        scheduler={"max_num_waiting": 1000},
    )
    rng = random.Random(1)

    async def ask() -> None:
        num_tokens = min(2000, int(rng.lognormvariate(6.5, 0.7)))
        prompt = [rng.randrange(3, 250) for _ in range(num_tokens)]
        answer = await client.ask(
            "",
            prompt_token_ids=prompt,
            max_tokens=rng.randrange(50, 400),
            ignore_eos=True,
            timeout_s=100,
        )
        assert isinstance(answer, Completion), answer

    asking = [asyncio.create_task(ask()) for _ in range(NUM_REQUESTS)]
    samples = []
    while not all(each.done() for each in asking):
        await asyncio.sleep(0.01)
        samples.append(sample_of(stack))
    await asyncio.gather(*asking)
    await until_empty(stack)

    # The pool fills first; from the first moment at which there is no room for more it counts.
    full = [each for each in samples if each is not None and each.slack < 0.05]
    first = samples.index(full[0])
    waiting = [each for each in samples[first:] if each is not None]
    used = statistics.mean(each.used for each in waiting)
    slack = statistics.mean(each.slack for each in waiting)
    record_property("used and slack", (used, slack, len(waiting)))
    assert used >= 0.95
    assert slack <= 0.05
