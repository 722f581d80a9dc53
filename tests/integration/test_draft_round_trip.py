"""The way to a draft worker and back: what it takes, by its causes."""

import asyncio
import statistics

import pytest
from draft_round_trip import BAR_US, draft_worker, opened_asker, rows_of

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import DRAFT
from slipstream.shared.messages.codec import decoder_of
from slipstream.shared.messages.draft import DraftJob, DraftTokens

pytestmark = [pytest.mark.nats, pytest.mark.timeout(90)]

_NUM_STEPS = 40


async def test_a_step_takes_one_message_each_way_whatever_its_sequences() -> None:
    """And ten times the bar is enough on a machine with neighbours."""
    jobs: list[DraftJob] = []
    answers: list[int] = []

    async def hear_job(incoming: Incoming) -> None:
        message = decoder_of(DRAFT.message).decode(incoming.payload)
        if isinstance(message, DraftJob):
            jobs.append(message)

    async def hear_answer(incoming: Incoming) -> None:
        if b"draft_tokens" in incoming.payload:
            message = decoder_of(DraftTokens).decode(incoming.payload)
            answers.append(len(message.proposals))

    with draft_worker() as url:
        tap = await NatsBus.connect(url, "tap")
        await tap.subscribe(DRAFT.wildcard, hear_job)
        await tap.subscribe("_INBOX.>", hear_answer)
        async with opened_asker(url, 8) as asker:
            sequences = await asker.sequences(32)
            taken_us = [await asker.ask(sequences) * 1e6 for _ in range(_NUM_STEPS)]
            await asyncio.sleep(0.2)
        await tap.close()

    assert [32] * _NUM_STEPS == [len(job.wants) for job in jobs] == answers
    # No more than what is new of each sequence travels.
    assert {3} == {len(want.new_token_ids) for job in jobs for want in job.wants}
    assert statistics.median(taken_us) < 10 * BAR_US


def test_figures_are_medians_of_rounds_with_their_interval() -> None:
    (row,) = rows_of({8: [[100.0, 200.0, 300.0], [200.0, 300.0, 400.0], [300.0, 400.0, 500.0]]})

    assert 8 == row["sequences"]
    assert {"median": 300.0, "low": 200.0, "high": 400.0} == row["p50_us"]
    assert 300 < row["p95_us"]["median"] < row["p99_us"]["median"] <= 400
