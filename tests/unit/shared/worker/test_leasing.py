"""Getting blocks: wait while they are short, give up for a reason, leave nothing unowned."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.endpoint import call_kv, serve
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.subjects import KV, MANAGER_VERBS
from slipstream.shared.ids import HostId, LeaseId, RequestId, WorkerId
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.messages.jobs import DecodeJob, ReplyTarget
from slipstream.shared.messages.kv import (
    Blocks,
    KvRefused,
    Lease,
    Leased,
    Match,
    Matched,
    Release,
    Released,
)
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.telemetry.context import SpanContext
from slipstream.shared.worker import leasing
from slipstream.shared.worker.deadline import Deadline
from slipstream.shared.worker.leased_blocks import LeasedBlocks
from slipstream.shared.worker.leasing import JobEndedError, Leasing
from slipstream.shared.worker.prompt_gate import PromptGate

SPAN = SpanContext("1" * 32, "1" * 16)
JOB = DecodeJob(
    request_id=RequestId("r"),
    attempt=2,
    model="fake",
    prompt_token_ids=PackedInts([1] * 40),
    output_token_ids=PackedInts([2]),
    sampling=SamplingParameters(seed=1),
    reply=ReplyTarget("_INBOX.x"),
    root_span=SPAN,
    attempt_span=SPAN,
)
TOKENS = [*JOB.prompt_token_ids, *JOB.output_token_ids]
GRANTED = Leased(
    lease_id=LeaseId("l"),
    blocks=Blocks(PackedInts([1]), PackedInts([1])),
    lease_ms=1000,
    num_reserved_blocks=1,
)
PENDING = KvRefused(reason="pending")
GATES: dict[int, PromptGate] = {}
SHORT = KvRefused(reason="no_blocks")


class Manager:
    """Answers leases one by one as told; None is no answer."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.heard: list[Any] = []
        self.asked = asyncio.Event()
        self.num_waiting_in_gate: list[int] = []

    async def answer(self, message: Any, _incoming: Incoming) -> Any:
        self.heard.append(message)
        self.asked.set()
        if isinstance(message, Release):
            return Released()
        if isinstance(message, Match):
            self.num_waiting_in_gate.append(GATES[id(self)].num_inside)
            return Matched(num_cached_tokens=0)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def lease(
    manager: Manager,
    deadline_ms: int | None = None,
    *,
    is_cancelled: Any = lambda: False,
    num_spare: Any = lambda: 0,
) -> tuple[LeasedBlocks, list[LeaseId]]:
    bus, host_id = MemoryBus(), HostId("h")
    for verb in MANAGER_VERBS:
        await serve(bus, KV.subject(host_id=host_id, verb=verb), KV, manager.answer)
    held: list[LeaseId] = []
    host: Any = SimpleNamespace(
        host_id=host_id,
        model=SimpleNamespace(layout=KvLayout(1, 1, 2, kind="fake"), fingerprint="sha256:5"),
        numerics="float32/kv-float32/amx",
        keeper=SimpleNamespace(hold=lambda lease_id, *_: held.append(lease_id)),
        gate=GATES.setdefault(id(manager), PromptGate(16)),
        num_tokens_ahead=32,
        num_blocks_of=KvLayout(1, 1, 2, kind="fake").num_blocks_for,
    )
    worker = (WorkerId("w"), 7)
    deadline = Deadline.from_ms(deadline_ms)
    leasing = Leasing(bus, host, worker)
    arrived_at = time.monotonic() - JOB.elapsed_ms / 1000
    return await leasing.lease(
        JOB, deadline, is_cancelled, TOKENS, arrived_at=arrived_at, num_spare=num_spare
    ), held


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(bus: Any, host_id: HostId, message: Any, **_: Any) -> Any:
        return await call_kv(bus, host_id, message, timeout_s=0.05)

    monkeypatch.setattr(leasing, "call_kv", call)


async def test_blocks_for_prompt_and_earlier_output_are_asked_for_and_kept() -> None:
    manager = Manager(GRANTED)
    leased, held = await lease(manager)

    assert ([1], [1], 1) == (leased.block_ids, leased.generations, leased.num_reserved)
    assert [LeaseId("l")] == held
    (asked,) = manager.heard
    assert (2, 1, 2, 7) == (
        asked.num_blocks,
        asked.num_first_blocks,
        asked.attempt,
        asked.worker_epoch,
    )
    assert [*[1] * 40, 2] == list(asked.token_ids)


async def test_it_waits_while_blocks_are_short() -> None:
    manager = Manager(SHORT, SHORT, GRANTED)

    assert [1] == (await lease(manager))[0].block_ids
    assert 3 == len(manager.heard)


async def test_a_lost_answer_is_asked_for_again() -> None:
    with capture_logs() as lines:
        assert [1] == (await lease(Manager(None, GRANTED)))[0].block_ids

    (line,) = lines
    assert ("lease_unanswered", "r", 2, SPAN.trace_id) == tuple(
        line[name] for name in ("event", "request_id", "attempt", "trace_id")
    )


async def test_a_prefix_that_somebody_computes_is_waited_for_outside_of_the_gate() -> None:
    manager = Manager(PENDING, PENDING, GRANTED)
    await lease(manager)

    kinds = [type(each) for each in manager.heard]
    assert [Lease, Match, Lease, Match, Lease] == kinds
    waited = manager.heard[1]
    assert manager.heard[0].token_ids == waited.token_ids
    assert waited.wait_ms > 0, "the manager says when there is more"
    assert [0, 0] == manager.num_waiting_in_gate, "nobody's way is barred meanwhile"


async def test_a_cancel_ends_the_wait() -> None:
    manager = Manager(SHORT)
    with pytest.raises(JobEndedError) as caught:
        await lease(manager, is_cancelled=manager.asked.is_set)

    assert "cancelled" == caught.value.code


async def test_the_deadline_ends_the_wait() -> None:
    with pytest.raises(JobEndedError) as caught:
        await lease(Manager(SHORT), 50)

    assert "deadline_exceeded" == caught.value.code


@pytest.mark.parametrize("reason", ["too_large", "cancelled", "incompatible", "not_holder"])
async def test_what_waiting_cannot_mend_ends_it_at_once(reason: Any) -> None:
    manager = Manager(KvRefused(reason=reason))
    with pytest.raises(JobEndedError) as caught:
        await lease(manager)

    assert f"kv_{reason}" == caught.value.code
    assert 1 == sum(isinstance(each, Lease) for each in manager.heard)


async def test_a_lease_that_may_have_been_granted_unheard_is_released() -> None:
    manager = Manager(None)
    with pytest.raises(JobEndedError):
        await lease(manager, is_cancelled=manager.asked.is_set)

    assert 0 == GATES[id(manager)].num_inside
    last = manager.heard[-1]
    assert isinstance(last, Release)
    assert (None, "w", "r", 2) == (last.lease_id, last.worker_id, last.request_id, last.attempt)


async def test_it_asks_only_when_there_is_room_and_says_what_must_be_left() -> None:
    manager = Manager(SHORT, GRANTED)
    room = [None, None, 3, 0]
    await lease(manager, num_spare=lambda: room.pop(0) if len(room) > 1 else room[0])

    assert [3, 0] == [asked.num_spare_blocks for asked in manager.heard]


async def test_one_that_waits_for_others_blocks_is_in_nobody_s_way() -> None:
    """The gate is free for others while it was refused and is to leave some over."""
    manager = Manager(SHORT)
    waiting = asyncio.create_task(lease(manager, num_spare=lambda: 3))
    await manager.asked.wait()
    gate = GATES[id(manager)]
    async with asyncio.timeout(1):
        while gate.num_inside:
            await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert (0, 0) == (gate.num_inside, gate.num_waiting)


async def test_a_request_gets_older_while_it_waits() -> None:
    manager = Manager(SHORT, SHORT, SHORT, GRANTED)
    await lease(manager)
    elapsed_ms = [asked.elapsed_ms for asked in manager.heard]

    assert JOB.elapsed_ms <= elapsed_ms[0]
    assert elapsed_ms[-1] >= elapsed_ms[0] + 10 + 20
    assert sorted(elapsed_ms) == elapsed_ms


async def test_a_question_without_an_answer_is_repeated_also_when_there_is_no_room_any_more() -> (
    None
):
    """It may have brought a lease, which somebody must know of."""
    manager = Manager(None, GRANTED)
    room = [0, None]
    leased, _ = await lease(manager, num_spare=lambda: room.pop(0) if len(room) > 1 else room[0])

    assert [1] == leased.block_ids
    assert 2 == len(manager.heard)
