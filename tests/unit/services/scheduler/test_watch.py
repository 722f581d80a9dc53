"""What nobody ends is ended: passed deadlines, lost records, silent workers."""

import asyncio
import time
from typing import Any

import pytest

from slipstream.services.scheduler import watch as watch_module
from slipstream.services.scheduler.answers import Refusal
from slipstream.shared.errors import DeadlineExceededError
from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.generate import REPLACED, Cancelled
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import WorkerRecord
from slipstream.shared.scheduling.classes import CLASSES

from .scheduler_office import Office, R, running
from .scheduler_samples import Worker, held, make_record, until


async def test_a_deadline_ends_what_waits_at_once(office: Office) -> None:
    office.desk.open(make_record(deadline_ms=1))
    await asyncio.sleep(0.005)
    await office.watch._tick()
    await until(lambda: office.codes)

    assert ["deadline_exceeded"] == office.codes
    office.assert_empty()


async def test_a_deadline_ends_what_runs_only_when_its_worker_does_not(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_OVERDUE_S", 0.1)
    decode = await office.worker("d")
    office.desk.open(make_record(deadline_ms=20))
    await until(lambda: decode.jobs)
    await asyncio.sleep(0.03)
    await office.watch._tick()
    assert [] == office.codes
    await asyncio.sleep(0.1)
    for _ in range(3):
        await office.watch._tick()
    await until(lambda: office.codes)

    assert ["deadline_exceeded"] == office.codes
    assert [REPLACED] == [each.reason for each in decode.cancels]
    office.assert_empty()


async def test_a_worker_that_has_answered_is_not_contradicted(office: Office) -> None:
    """Only its report was lost: the client has its ending."""
    record, decode = await running(office)
    decode.answer_cancel = Cancelled(R, "ended", was_ended_here=True)
    await office.desk.attempt_failed(record, Refusal("lost", ""), decode.worker_id)

    assert [] == office.answers
    office.assert_empty()


async def test_a_record_that_its_holder_keeps_not_mentioning_is_lost(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_MIN_UNMENTIONED_S", 0.02)
    record, decode = await running(office)
    for _ in range(9):
        await office.report(decode)
    await asyncio.sleep(0.03)
    assert 0 == record.num_failures, "a burst of reports says nothing"
    await office.report(decode)
    await until(lambda: len(decode.jobs) == 2)

    assert 2 == decode.jobs[1].attempt


async def test_a_mention_begins_the_count_anew(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_MIN_UNMENTIONED_S", 0.0)
    _, decode = await running(office)
    for _ in range(5):
        await office.report(decode)
        await office.report(decode)
        await office.report(decode, held=[held()])
    await office.report(decode, held=[held(attempt=7)])

    assert 1 == len(decode.jobs)


async def test_the_death_of_a_worker_moves_all_it_held(office: Office) -> None:
    decode = await office.worker("a")
    for number in range(3):
        office.desk.open(make_record(f"r{number}"))
    await until(lambda: len(decode.jobs) == 3)
    other = await office.worker("b")
    await decode.die()
    office.fleet.suspect(decode.worker_id)
    await office.watch._tick()
    await until(lambda: len(other.jobs) == 3)

    assert {2} == {job.attempt for job in other.jobs}
    assert not office.fleet.has(decode.worker_id)
    assert {other.worker_id: 3} == office.fleet._assigned


async def test_one_unanswered_job_has_the_worker_s_other_requests_moved_too(
    office: Office,
) -> None:
    """A worker that nobody listens for any more is probed, not just forgotten."""
    decode = await office.worker("a")
    office.desk.open(make_record("r1"))
    await until(lambda: decode.jobs)
    await decode.die()
    office.desk.open(make_record("r2"))
    await until(lambda: not office.fleet.least_busy("decode", max_num=9))
    await office.watch._tick()
    other = await office.worker("b")
    await until(lambda: len(other.jobs) == 2)

    assert {"r1", "r2"} == {job.request_id for job in other.jobs}


async def test_a_worker_that_answers_the_probe_lives(office: Office) -> None:
    _, decode = await running(office)
    office.fleet.suspect(decode.worker_id)
    await office.watch._tick()
    await until(lambda: office.fleet.least_busy("decode", max_num=9))

    assert 1 == len(decode.jobs)


async def test_a_report_during_the_probe_saves_a_worker(office: Office) -> None:
    _, decode = await running(office)
    decode.is_silent = True
    decode.heard.clear()
    office.fleet.suspect(decode.worker_id)
    await office.watch._tick()
    await until(decode.heard.is_set)
    await office.report(decode, held=[held()])
    await asyncio.sleep(0.08)

    assert office.fleet.has(decode.worker_id)
    assert 1 == len(decode.jobs)


async def test_absence_means_nothing_after_a_reconnect(office: Office) -> None:
    _, decode = await running(office)
    await decode.die()
    office.fleet.suspect(decode.worker_id)
    office.bus.connection.lost()
    office.bus.connection.back()
    await office.watch._tick()
    await asyncio.sleep(0.01)

    assert office.fleet.has(decode.worker_id)


async def test_absence_means_nothing_while_we_are_cut_off(office: Office) -> None:
    _, decode = await running(office)
    await decode.die()
    office.fleet.suspect(decode.worker_id)
    office.bus.connection.lost()
    await office.watch._tick()
    await asyncio.sleep(0.01)

    assert office.fleet.has(decode.worker_id)


async def test_nobody_is_dead_whom_a_silent_server_could_not_ask(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stands, and nothing comes over it."""
    _, decode = await running(office)
    decode.is_silent = True
    office.fleet.suspect(decode.worker_id)
    server_asked = asyncio.Event()

    async def flush(timeout_s: float = 2.0) -> None:
        server_asked.set()
        raise DeadlineExceededError("flush", timeout_s)

    monkeypatch.setattr(office.bus, "flush", flush)
    await office.watch._tick()
    await until(server_asked.is_set)
    await asyncio.sleep(0.01)

    assert office.fleet.has(decode.worker_id)


async def test_without_decode_workers_requests_fail_after_a_while(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "NO_WORKER_S", 0.05)
    office.desk.open(make_record("r1"))
    await office.watch._tick()
    assert [] == office.codes
    await asyncio.sleep(0.06)
    office.desk.open(make_record("r2"))
    await office.watch._tick()
    await office.bus.flush()

    assert ["no_workers"] == office.codes
    assert 1000 == office.answers[0].retry_after_ms
    assert ["r2"] == list(office.desk.records), "each request waits its own time"


async def test_a_request_that_waited_long_still_waits_for_a_restart(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that died a moment ago is being started again."""
    monkeypatch.setattr(watch_module, "NO_WORKER_S", 0.05)
    await office.worker("d", num_seats=0)
    record = make_record()
    record.arrived_at = time.monotonic() - 100
    office.desk.open(record)
    await office.watch._tick()
    office.fleet.remove(WorkerId("d"))
    await office.watch._tick()

    assert [] == office.codes


async def test_what_can_never_fit_is_told_at_once(office: Office) -> None:
    await office.report("k", "kv", num_blocks=1)
    await office.worker("d")
    office.desk.open(make_record(prompt_token_ids=PackedInts([1] * 40)))
    await until(lambda: office.codes)

    assert ["kv_too_large"] == office.codes
    assert "48 tokens; the KV cache holds 32" in office.answers[0].message
    office.assert_empty()


async def test_a_drain_refuses_what_waits(office: Office) -> None:
    office.desk.open(make_record())
    await office.desk.drain(0.1)
    await office.bus.flush()

    assert ["draining"] == office.codes
    office.assert_empty()


async def test_a_drain_answers_what_is_prefilled_and_leaves_what_decodes(office: Office) -> None:
    """A prefill that fails after the scheduler has gone would be answered by nobody."""
    await office.worker("p", "prefill")
    await office.worker("d")
    office.desk.open(make_record("r1"))
    office.desk.open(make_record("r2"))
    await until(lambda: all(each.placement for each in office.desk.records.values()))
    office.desk.records[RequestId("r2")].phase = "decoding"

    await office.desk.drain(1.0)
    await office.bus.flush()

    assert [("r1", "draining")] == [(each.request_id, each.code) for each in office.answers]
    assert ["r2"] == list(office.desk.records)


async def test_work_that_fails_beside_the_loops_ends_nothing(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def explode(*_: Any) -> None:
        raise RuntimeError("boom")

    decode = await office.worker("d")
    with monkeypatch.context() as patch:
        patch.setattr(office.desk._dispatcher, "send", explode)
        office.desk.open(make_record())
        await until(lambda: office.codes)
    assert ["internal_error"] == office.codes
    office.desk.open(make_record("r2"))
    await until(lambda: decode.jobs)


async def test_the_past_is_bounded(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.services.scheduler.desk._NUM_CLOSED", 10)
    for number in range(30):
        record = make_record(f"r{number}")
        office.desk.open(record)
        await office.desk.fail(record, Refusal("x", ""))
        await office.desk.fail(record, Refusal("x", ""))
    await office.bus.flush()

    assert (10, 30) == (len(office.desk._closed), len(office.answers))


async def test_workers_in_the_registry_are_met(office: Office) -> None:
    decode = await Worker("d", "decode").listen(office.bus)
    await office.watch.meet()
    assert not office.fleet.has(decode.worker_id)
    record = WorkerRecord(
        worker_id=decode.worker_id, role="decode", epoch=1, protocol=1, version="0"
    )
    await office.bus.registry().put(decode.worker_id, encode(record))
    await office.watch.meet()

    assert office.fleet.has(decode.worker_id)


async def test_who_has_waited_longer_than_its_class_may_is_told_to_come_back(
    office: Office,
) -> None:
    """Unless its client has said how long it waits: then the deadline ends it."""
    await office.worker("d", num_seats=0)
    since = time.monotonic() - CLASSES["standard"].ttft_target_s - 1
    for name, is_patient in (("impatient", False), ("patient", True)):
        record = make_record(name, deadline_ms=600_000, is_patient=is_patient)
        record.arrived_at = since
        office.desk.open(record)
    await office.watch._tick()
    await until(lambda: office.answers)

    assert ["overloaded"] == office.codes
    assert "impatient" == office.answers[0].request_id
    assert office.answers[0].retry_after_ms
    assert ["patient"] == [each.request_id for each in office.desk.load.waiting()]


async def test_a_queue_without_workers_refuses_nobody_for_its_length(office: Office) -> None:
    """Nothing moves because nobody is there yet: that says nothing of how fast it will."""
    office.desk.open(make_record("first"))
    await asyncio.sleep(0.7)

    assert office.desk.load.judge(make_record("second").request) is None
