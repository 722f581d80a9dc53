"""A cancel is answered once in every phase, and nothing runs on."""

import asyncio

from slipstream.services.scheduler.answers import Refusal
from slipstream.shared.messages.common import Rejected
from slipstream.shared.messages.generate import Cancelled

from .scheduler_office import Office, R, cancel, running
from .scheduler_samples import ended, make_record, until


async def test_a_cancel_while_waiting_is_answered_by_the_scheduler(office: Office) -> None:
    office.desk.open(make_record())

    assert "waiting" == (await cancel(office)).phase
    await office.bus.flush()
    assert ["cancelled"] == office.codes
    assert "ended" == (await cancel(office)).phase
    office.assert_empty()


async def test_a_cancel_of_what_nobody_knows_is_harmless(office: Office) -> None:
    assert "unknown" == (await cancel(office)).phase


async def test_a_cancel_while_decoding_is_answered_by_the_worker(office: Office) -> None:
    _, decode = await running(office)
    decode.answer_cancel = Cancelled(R, "decoding", was_ended_here=True)
    await cancel(office)
    # The job may still be on its way: then the cancel is sent again behind it.
    assert {("client", 1)} == {(each.reason, each.attempt) for each in decode.cancels}
    await office.report(decode, ended=[ended(was_answered=True, finish_reason="abort")])

    assert [] == office.answers
    office.assert_empty()


async def test_a_cancel_while_prefilling_reaches_both_workers(office: Office) -> None:
    decode, prefill = await office.worker("d"), await office.worker("p", "prefill")
    office.desk.open(make_record())
    await until(lambda: prefill.jobs)
    await cancel(office)
    assert (1, 1) == (len(decode.cancels), len(prefill.cancels))
    await office.report(prefill, ended=[ended(code="cancelled")])
    await office.bus.flush()

    assert ["cancelled"] == office.codes
    office.assert_empty()


async def test_a_cancel_on_its_way_past_the_job_still_counts(office: Office) -> None:
    """The worker's tombstone refuses the job, and nothing is tried again."""
    decode = await office.worker("d")
    decode.is_silent = True
    record = make_record()
    office.desk.open(record)
    await until(lambda: decode.jobs)
    await cancel(office)
    decode.is_silent = False
    decode.answer_job = Rejected(request_id=R, attempt=1, reason="cancelled")
    await until(lambda: office.codes)

    assert ["cancelled"] == office.codes
    office.assert_empty()


async def test_a_cancel_between_two_attempts_ends_the_request(office: Office) -> None:
    record, decode = await running(office)
    decode.is_silent = True
    failing = asyncio.create_task(
        office.desk.attempt_failed(record, Refusal("lease_lost", ""), decode.worker_id)
    )
    await until(lambda: decode.cancels)
    await cancel(office)
    await failing
    await office.bus.flush()

    assert ["cancelled"] == office.codes
    office.assert_empty()
