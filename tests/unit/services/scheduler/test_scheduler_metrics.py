"""The scheduler counts the endings that it sends, and shows what it holds."""

import time

from slipstream.services.scheduler.answers import Refusal
from slipstream.shared.messages.common import Rejected
from slipstream.shared.messages.generate import Cancel

from .scheduler_office import FINISHED, Office, R
from .scheduler_samples import ended, held, make_record, until


def requests(office: Office) -> list[float | None]:
    return [
        office.metric("slipstream_requests", role="scheduler", state=state)
        for state in ("waiting", "prefilling", "running")
    ]


async def test_requests_are_shown_by_state_from_arrival_to_ending(office: Office) -> None:
    office.desk.open(make_record())
    seen = [requests(office)]
    decode = await office.worker("d")
    prefill = await office.worker("p", "prefill")
    await until(lambda: decode.jobs or prefill.jobs)
    seen.append(requests(office))
    await office.report(decode, held=[held()])
    seen.append(requests(office))
    await office.report(decode, ended=[ended(**FINISHED)])
    seen.append(requests(office))

    running = [0, 0, 1]
    assert [1, 0, 0] == seen[0]
    assert seen[1] in ([0, 1, 0], running)
    assert [running, [0, 0, 0]] == seen[2:]
    assert 1 == office.metric("slipstream_queue_time_seconds_count")


async def test_the_age_of_the_queue_is_that_of_the_oldest_that_waits(office: Office) -> None:
    assert 0 == office.metric("slipstream_queue_age_seconds")
    old, young = make_record("old"), make_record("young")
    old.arrived_at = time.monotonic() - 5
    office.desk.open(young)
    office.desk.open(old)
    age = office.metric("slipstream_queue_age_seconds")
    old.phase = "decoding"

    assert age is not None
    assert 5 <= age < 6
    assert (office.metric("slipstream_queue_age_seconds") or 0) < 1


async def test_only_endings_that_the_scheduler_sends_are_counted(office: Office) -> None:
    decode = await office.worker("d")
    office.desk.open(make_record("served"))
    await until(lambda: decode.jobs)
    await office.report(decode, ended=[ended("served", **FINISHED)])
    waiting = make_record("waiting", route="remote", deadline_ms=None)
    office.desk.records[waiting.request_id] = waiting
    await office.desk.fail(waiting, Refusal("no_workers", "none"))
    await office.desk.fail(waiting, Refusal("no_workers", "again"))

    assert 1 == office.metric("slipstream_failed_total", code="no_workers")
    await until(lambda: office.codes)
    assert ["no_workers"] == office.codes


async def test_a_second_attempt_is_no_second_placement(office: Office) -> None:
    decode = await office.worker("d")
    decode.answer_job = Rejected(request_id=R, attempt=1, reason="no_seat")
    office.desk.open(make_record())
    await until(lambda: decode.cancels)
    await office.report(decode)
    await until(lambda: len(decode.jobs) > 1)

    assert 1 == office.metric("slipstream_queue_time_seconds_count")


async def test_a_late_ending_is_counted_once_however_often_it_is_told(office: Office) -> None:
    decode = await office.worker("d")
    record = make_record()
    office.desk.open(record)
    await until(lambda: decode.jobs)
    record.attempt = 3
    for _ in range(4):
        await office.report(decode, held=[held(attempt=3)], ended=[ended(attempt=2, code="lost")])
    await office.report(decode, held=[held(attempt=3)], ended=[ended("other", **FINISHED)])

    assert 1 == office.metric("slipstream_late_completions_total")


async def test_a_cancel_while_waiting_is_an_ending_of_ours(office: Office) -> None:
    office.desk.open(make_record())
    await office.desk.cancel(Cancel(request_id=R))

    assert 1 == office.metric("slipstream_failed_total", code="cancelled")
    assert [0, 0, 0] == requests(office)
