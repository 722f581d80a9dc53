"""Proposals are hints: what is late, stale, lost or impossible never reaches a step."""

import asyncio
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from slipstream.services.decode import drafts as drafts_module
from slipstream.services.decode.draft_policy import DraftPolicy
from slipstream.services.decode.drafts import DraftClient
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.subjects import DRAFT
from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.messages.common import Accepted
from slipstream.shared.messages.draft import (
    DraftClose,
    DraftJob,
    DraftOpen,
    DraftProposal,
    DraftTokens,
    DraftWant,
)
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import WorkerReport

from .decode_samples import SPAN, make_sequence, say

ONE, TWO = WorkerId("d1"), WorkerId("d2")


class Drafter:
    """A draft worker that says what a test wants."""

    def __init__(self) -> None:
        self.wants: list[DraftWant] = []
        self.opened: list[DraftOpen] = []
        self.closed: list[DraftClose] = []
        self.token_ids = [1, 2]
        self.changes: dict[str, Any] = {}
        self.delay_s = 0.0
        self.answer_instead: Any = None

    async def answer(self, message: Any, _incoming: Incoming) -> Any:
        match message:
            case DraftOpen():
                self.opened.append(message)
                return Accepted(request_id=message.request_id)
            case DraftClose():
                self.closed.append(message)
                return None
            case DraftJob():
                self.wants += message.wants
                await asyncio.sleep(self.delay_s)
                return self.answer_instead or DraftTokens(
                    [self._proposal(want) for want in message.wants]
                )

    def _proposal(self, want: DraftWant) -> DraftProposal:
        fields = {
            "request_id": want.request_id,
            "attempt": want.attempt,
            "position": want.position,
            "token_ids": PackedInts(self.token_ids),
        }
        return DraftProposal(**(fields | self.changes))


@pytest.fixture
def drafter() -> Drafter:
    return Drafter()


def report(worker_id: WorkerId = ONE, *, is_draining: bool = False) -> WorkerReport:
    return WorkerReport(
        worker_id=worker_id,
        role="draft",
        epoch=1,
        number=1,
        num_seats=1,
        num_free_seats=1,
        is_draining=is_draining,
    )


@pytest.fixture
async def client(drafter: Drafter) -> DraftClient:
    bus = MemoryBus()
    for worker_id in (ONE, TWO):
        await serve(bus, DRAFT.subject(worker_id=worker_id), DRAFT, drafter.answer)
    made = DraftClient(bus, DraftPolicy(3), budget_s=0.2, vocab_size=259)
    made.saw(report())
    return made


def decoding(text: str = "ab", request: str = "r") -> DecodeSequence:
    sequence = make_sequence([10, 11], request=request, max_tokens=100)
    say(sequence, text)
    sequence.num_computed_tokens = len(sequence.token_ids) - 1
    return sequence


async def propose(client: DraftClient, sequence: DecodeSequence) -> list[int] | None:
    found = (await client.propose([sequence])).get(sequence.attempt)
    return None if found is None else list(found)


def go_on(sequence: DecodeSequence, text: str) -> None:
    say(sequence, text)
    sequence.num_computed_tokens = len(sequence.token_ids) - 1


async def test_an_opened_sequence_sends_only_what_is_new(
    client: DraftClient, drafter: Drafter
) -> None:
    sequence = decoding()
    await client.open(sequence)
    go_on(sequence, "c")

    assert [1, 2] == await propose(client, sequence)
    go_on(sequence, "de")
    await propose(client, sequence)
    assert [[ord("c")], [ord("d"), ord("e")]] == [list(w.new_token_ids) for w in drafter.wants]
    assert [5, 7] == [want.position for want in drafter.wants]
    assert not any(want.is_whole for want in drafter.wants)


@pytest.mark.parametrize(
    "changes",
    [
        {"position": 3},
        {"attempt": 2},
        {"request_id": RequestId("other")},
        {"token_ids": PackedInts([259])},
        {"token_ids": PackedInts([1, 2, 3, 4])},
        {"token_ids": PackedInts()},
    ],
    ids=["stale", "other attempt", "other request", "out of range", "too many", "none"],
)
async def test_what_cannot_be_meant_is_dropped(
    client: DraftClient, drafter: Drafter, changes: dict[str, Any]
) -> None:
    sequence = decoding()
    await client.open(sequence)
    drafter.changes = changes

    assert {} == await client.propose([sequence])
    drafter.changes = {}
    assert [1, 2] == await propose(client, sequence)


async def test_a_lost_sequence_is_sent_whole(client: DraftClient, drafter: Drafter) -> None:
    sequence = decoding()
    await client.open(sequence)
    drafter.changes = {"is_lost": True, "token_ids": PackedInts()}
    assert await propose(client, sequence) is None
    drafter.changes = {}

    assert [1, 2] == await propose(client, sequence)
    assert drafter.wants[-1].is_whole
    assert sequence.token_ids == list(drafter.wants[-1].new_token_ids)


async def test_an_answer_after_the_budget_is_dropped_and_told_again(
    client: DraftClient, drafter: Drafter
) -> None:
    sequence = decoding()
    await client.open(sequence)
    go_on(sequence, "c")
    client._budget_s = 0.02
    drafter.delay_s = 0.1
    assert await propose(client, sequence) is None
    client._budget_s, drafter.delay_s = 0.2, 0.0
    go_on(sequence, "d")

    assert [1, 2] == await propose(client, sequence)
    assert [ord("c"), ord("d")] == list(drafter.wants[-1].new_token_ids)


async def test_a_worker_that_misses_the_budget_twice_is_left_alone_for_a_while(
    client: DraftClient, drafter: Drafter
) -> None:
    sequence = decoding()
    await client.open(sequence)
    await miss(client, drafter, sequence)
    assert 2 == len(drafter.wants)
    client._paused_until = 0.0

    assert [1, 2] == await propose(client, sequence)


async def test_who_is_still_slow_after_a_pause_is_asked_once_before_the_next(
    client: DraftClient, drafter: Drafter
) -> None:
    sequence = decoding()
    await client.open(sequence)
    await miss(client, drafter, sequence)
    for num_asked in (3, 4):
        client._paused_until = 0.0
        await miss(client, drafter, sequence)

        assert num_asked == len(drafter.wants)


async def test_another_worker_is_asked_at_once_though_the_last_one_was_slow(
    client: DraftClient, drafter: Drafter
) -> None:
    sequence = decoding()
    await client.open(sequence)
    await miss(client, drafter, sequence)
    client.saw(report(is_draining=True))
    client.saw(report(TWO))

    assert [1, 2] == await propose(client, sequence)


async def miss(client: DraftClient, drafter: Drafter, sequence: DecodeSequence) -> None:
    """Ask five times for what comes too late, then have the worker be quick again."""
    drafter.delay_s, client._budget_s = 0.1, 0.005
    for _ in range(5):
        assert await propose(client, sequence) is None
    drafter.delay_s, client._budget_s = 0.0, 0.2


async def test_an_answer_of_another_kind_ends_no_loop(
    client: DraftClient, drafter: Drafter
) -> None:
    sequence = decoding()
    await client.open(sequence)
    drafter.answer_instead = Accepted(request_id=RequestId("r"))

    assert {} == await client.propose([sequence])


async def test_another_worker_gets_the_sequence_whole(
    client: DraftClient, drafter: Drafter
) -> None:
    sequence = decoding()
    await client.open(sequence)
    client.saw(report(is_draining=True))
    client.saw(report(TWO))

    assert [1, 2] == await propose(client, sequence)
    assert TWO == client._worker_id
    assert drafter.wants[-1].is_whole


async def test_an_unanswered_opening_is_logged_with_its_request(client: DraftClient) -> None:
    gone = WorkerId("d0")
    client.saw(report(gone))
    with capture_logs() as lines:
        await client.open(decoding())

    (line,) = lines
    expected = {"event": "draft_not_opened", "request_id": "r", "attempt": 1}
    assert line.items() >= (expected | {"trace_id": SPAN.trace_id}).items()


async def test_a_worker_that_comes_later_helps_sequences_that_run(
    client: DraftClient, drafter: Drafter
) -> None:
    client.saw(report(is_draining=True))
    sequence = decoding()
    await client.open(sequence)
    assert {} == await client.propose([sequence])
    client.saw(report(TWO))

    assert [1, 2] == await propose(client, sequence)
    assert drafter.wants[-1].is_whole


async def test_a_silent_worker_is_not_asked(
    client: DraftClient, drafter: Drafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = decoding()
    await client.open(sequence)
    later = time.monotonic() + drafts_module.DEAD_AFTER_S + 0.1
    monkeypatch.setattr(drafts_module.time, "monotonic", lambda: later)

    assert client.choose() is None
    assert {} == await client.propose([sequence])


async def test_who_wants_no_drafts_is_not_opened(client: DraftClient, drafter: Drafter) -> None:
    sequence = make_sequence([1], num_speculative_tokens=0)
    await client.open(sequence)
    sequence.num_computed_tokens = 0

    assert {} == await client.propose([sequence])
    assert ([], []) == (drafter.opened, drafter.wants)


async def test_a_way_that_takes_longer_than_it_saves_is_not_gone(
    client: DraftClient, drafter: Drafter
) -> None:
    sequence = decoding()
    await client.open(sequence)
    client._ask_s = 1.0

    assert {} == await client.propose([sequence])
    assert [] == drafter.wants
    assert 1 == sequence.drafts.num_steps_unused
    for _ in range(63):
        await client.propose([sequence])
    assert 1 == len(drafter.wants), "now and then it is tried all the same"
    assert client._ask_s < 1.0, "and what it takes by now is learned"


async def test_prompts_that_are_not_computed_yet_are_passed_over(
    client: DraftClient, drafter: Drafter
) -> None:
    sequence = decoding()
    await client.open(sequence)
    sequence.num_computed_tokens = 0

    assert {} == await client.propose([sequence])


async def test_a_close_tells_the_counts_and_forgets(client: DraftClient, drafter: Drafter) -> None:
    sequence = decoding()
    await client.open(sequence)
    sequence.drafts.count(4, 2)
    await client.close(sequence)
    await client._bus.flush()

    (closed,) = drafter.closed
    assert (4, 3, 2) == (
        closed.num_drafted_tokens,
        closed.num_tested_tokens,
        closed.num_accepted_tokens,
    )
    assert not client._num_told
