"""A request from arrival to its one ending, whatever its workers say."""

import asyncio

import pytest
from structlog.testing import capture_logs

from slipstream.services.scheduler.answers import Refusal
from slipstream.services.scheduler.records import RequestRecord
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.common import Rejected, Usage
from slipstream.shared.messages.generate import REPLACED
from slipstream.shared.messages.jobs import DecodeJob, PrefillJob
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import SamplingParameters, SpeculationMode
from slipstream.shared.scheduling.queue import AGED_EVERY
from slipstream.shared.telemetry.logging import request_fields

from .scheduler_office import FINISHED, Office, R, running
from .scheduler_samples import ended, held, make_record, until

USAGE = Usage(num_prompt_tokens=3, num_output_tokens=1)


async def test_a_remote_request_goes_through_both_workers(office: Office) -> None:
    decode = await office.worker("d")
    prefill = await office.worker("p", "prefill")
    record = make_record()
    office.desk.open(record)
    await until(lambda: prefill.jobs)
    job = prefill.jobs[0]
    assert isinstance(job, PrefillJob)
    assert ("d", "h", 1, "remote") == (
        job.decode_worker_id,
        job.decode_host_id,
        job.attempt,
        job.route,
    )
    assert "prefilling" == record.phase
    await office.report(prefill, ended=[ended()])
    assert ("decoding", "d") == (record.phase, record.holder)
    await office.report(decode, ended=[ended(**FINISHED, usage=USAGE)])

    office.assert_empty()
    assert [] == office.answers, "the decode worker has answered"
    assert "d" == office.desk.last_holder(R)


async def test_a_local_request_goes_to_the_decode_worker(office: Office) -> None:
    decode = await office.worker("d")
    office.desk.open(make_record())
    await until(lambda: decode.jobs)

    assert isinstance(decode.jobs[0], DecodeJob)
    assert ("local", "no_prefill_worker") == (decode.jobs[0].route, decode.jobs[0].route_reason)


async def test_seats_bound_what_is_placed(office: Office) -> None:
    decode = await office.worker("d", num_seats=2)
    for name in ("r1", "r2", "r3"):
        office.desk.open(make_record(name))
    await until(lambda: len(decode.jobs) == 2)
    await asyncio.sleep(0.01)
    assert (2, 1) == (len(decode.jobs), len(office.desk.load.queue))
    await office.report(decode, num_seats=2, ended=[ended("r1", **FINISHED)])

    await until(lambda: len(decode.jobs) == 3)


@pytest.mark.parametrize("trouble", ["gone", "silent", "wrong_model", "no_seat"])
async def test_a_worker_that_does_not_take_the_job_costs_an_attempt_elsewhere(
    office: Office, trouble: str
) -> None:
    first = await office.worker("a")
    if trouble == "gone":
        await first.die()
    first.is_silent = trouble == "silent"
    if trouble in ("wrong_model", "no_seat"):
        first.answer_job = Rejected(request_id=R, attempt=1, reason=trouble)  # type: ignore[arg-type] # the parameters are reasons
    second = await office.worker("b")
    record = make_record()
    office.desk.open(record)
    await until(lambda: second.jobs)

    num_failures = int(trouble not in ("no_seat", "gone", "silent"))
    assert (2, num_failures) == (second.jobs[0].attempt, record.num_failures)
    if trouble != "gone":
        assert [(1, REPLACED)] == [(each.attempt, each.reason) for each in first.cancels]
    assert [] == office.answers
    assert {WorkerId("b"): 1} == office.fleet._assigned


async def test_a_lost_answer_is_asked_for_again_under_the_same_attempt(office: Office) -> None:
    decode = await office.worker("d")
    decode.is_silent = True
    office.desk.open(make_record())
    await until(lambda: len(decode.jobs) == 2)
    decode.is_silent = False
    await until(lambda: len(decode.jobs) == 3)

    assert [1, 1, 1] == [job.attempt for job in decode.jobs]
    assert [] == decode.cancels


async def test_a_dispatch_that_breaks_is_logged_with_its_request(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_down(_record: RequestRecord) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(office.desk._dispatcher, "send", break_down)
    await office.worker("d")
    record = make_record()
    with capture_logs() as lines:
        office.desk.open(record)
        await until(lambda: office.codes)

    broken = [line for line in lines if line["event"] == "dispatch_failed"]
    assert [1, 2, 3] == [line["attempt"] for line in broken]
    for line in broken:
        assert line.items() >= request_fields(R, record.root.context).items()


async def test_what_breaks_beside_the_loops_is_logged_with_its_request(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_down(_record: RequestRecord, _attempt: int) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(office.desk, "_dispatch", break_down)
    await office.worker("d")
    record = make_record()
    with capture_logs() as lines:
        office.desk.open(record)
        await until(lambda: lines)

    (line,) = lines
    assert "task_failed" == line["event"]
    assert line.items() >= record.log_fields.items()


async def test_attempts_are_limited(office: Office) -> None:
    decode = await office.worker("d")
    decode.answer_job = Rejected(request_id=R, attempt=1, reason="invalid", message="why")
    office.desk.open(make_record())
    await until(lambda: office.codes)

    assert ["worker_invalid"] == office.codes
    # On a busy machine a job is sent once more before its answer comes.
    assert [1, 2, 3] == sorted({job.attempt for job in decode.jobs})
    office.assert_empty()


async def test_a_full_worker_is_asked_again_when_it_says_that_it_has_a_seat(
    office: Office,
) -> None:
    """As after a restart of the scheduler: its seats are taken by requests that are not ours."""
    decode = await office.worker("d")
    decode.answer_job = Rejected(request_id=R, attempt=1, reason="no_seat")
    record = make_record()
    office.desk.open(record)
    await until(lambda: decode.cancels)
    for _ in range(20):
        office.desk.kick()
        await asyncio.sleep(0.005)
    assert 1 == len(decode.jobs), "it is not asked for ever what it has answered"
    await office.report(decode, num_free_seats=0)
    await asyncio.sleep(0.02)
    assert 1 == len(decode.jobs)
    decode.answer_job = None
    await office.report(decode, num_free_seats=1)
    await until(lambda: record.phase == "decoding" and not record.is_leaving)

    assert (2, 0) == (len(decode.jobs), record.num_failures)
    assert 3 == office.desk.load.queue.counters.of(""), "its tenant has paid once"


async def test_workers_that_are_gone_cost_no_attempt(office: Office) -> None:
    """Three of four died at once: the request goes to the fourth."""
    for name in ("a", "b", "c"):
        await (await office.worker(name)).die()
    alive = await office.worker("z")
    office.desk.open(make_record())
    await until(lambda: alive.jobs)

    assert [] == office.codes


async def test_a_full_decode_worker_is_not_the_prefill_worker_s_fault(office: Office) -> None:
    full, free = await office.worker("d1"), await office.worker("d2")
    prefill = await office.worker("p", "prefill")
    record = make_record()
    office.desk.open(record)
    await until(lambda: prefill.jobs)
    assert full.worker_id == prefill.jobs[0].decode_worker_id
    await office.report(prefill, ended=[ended(code="decode_no_seat")])
    await until(lambda: len(prefill.jobs) == 2)

    assert free.worker_id == prefill.jobs[1].decode_worker_id
    assert (set(), 0) == (record.avoid, record.num_failures)


async def test_whose_turn_came_for_its_age_is_urgent_for_workers_too(office: Office) -> None:
    """Else it would hold a seat and wait inside for those that it was put before."""
    decode = await office.worker("d", num_seats=8)
    office.desk.load.queue._num_since_aged = AGED_EVERY - 1
    batch = make_record("batch", latency_class="batch", route="local")
    batch.arrived_at -= 100
    office.desk.open(make_record("now", latency_class="interactive", route="local"))
    office.desk.open(batch)
    await until(lambda: len(decode.jobs) == 2)

    assert "batch" == decode.jobs[0].request_id
    assert decode.jobs[0].priority == decode.jobs[1].priority


async def test_a_worker_that_is_full_up_to_the_deadline_is_not_the_client_s_reason(
    office: Office,
) -> None:
    decode = await office.worker("d")
    decode.answer_job = Rejected(request_id=R, attempt=1, reason="no_seat")
    office.desk.open(make_record(deadline_ms=1))
    await asyncio.sleep(0.01)
    await office.watch._tick()
    await until(lambda: office.codes)

    assert ["deadline_exceeded"] == office.codes
    office.assert_empty()


@pytest.mark.parametrize(
    ("code", "is_final"),
    [
        ("lease_lost", False),
        ("kv_expired", False),
        ("no_answer", False),
        ("decode_no_seat", False),
        ("internal_error", False),
        ("kv_mismatch", True),
        ("deadline_exceeded", True),
        ("non_finite_logits", True),
        ("kv_too_large", True),
    ],
)
async def test_an_attempt_that_failed_unanswered_is_tried_again_where_that_can_help(
    office: Office, code: str, is_final: bool
) -> None:
    record, decode = await running(office)
    await office.report(decode, ended=[ended(code=code, message="why")])
    if is_final:
        await office.bus.flush()
        assert [code] == office.codes
        office.assert_empty()
    else:
        await until(lambda: len(decode.jobs) == 2)
        assert 2 == decode.jobs[1].attempt
        assert record.attempt == 2
        assert [] == office.codes


async def test_endings_that_are_repeated_or_contradict_each_other_count_once(
    office: Office,
) -> None:
    record, decode = await running(office)
    await asyncio.gather(
        office.report(decode, ended=[ended(code="lease_lost")]),
        office.report(decode, ended=[ended(code="lease_lost")]),
        office.desk.attempt_failed(record, Refusal("worker_lost", ""), WorkerId("d")),
    )
    await until(lambda: len(decode.jobs) == 2)
    await office.report(decode, held=[held(attempt=2)], ended=[ended(code="lease_lost")])

    assert (0, 2) == (record.num_failures, record.attempt), "what was lost is nobody's failure"
    await office.report(decode, ended=[ended(attempt=2, **FINISHED)])
    await office.report(decode, ended=[ended(attempt=2, **FINISHED)])
    office.assert_empty()


@pytest.mark.parametrize("is_exact", [True, False])
async def test_a_stream_whose_tokens_were_seen_goes_on_behind_them_if_they_are_said_alike(
    office: Office, is_exact: bool
) -> None:
    record, decode = await running(office)
    record.is_replayed_alike = is_exact
    await office.report(decode, held=[held(next_index=2, token_ids=PackedInts([5, 6]))])
    assert [5, 6] == record.token_ids
    await office.report(decode, ended=[ended(code="worker_lost")])
    assert [REPLACED] == [each.reason for each in decode.cancels]
    if is_exact:
        await until(lambda: len(decode.jobs) == 2)

        assert [5, 6] == list(decode.jobs[1].output_token_ids)
        assert [] == office.codes
    else:
        await office.bus.flush()

        assert ["worker_lost"] == office.codes
        office.assert_empty()


@pytest.mark.parametrize(
    ("mode", "is_streamed", "code", "is_begun_again"),
    [
        ("rejection", True, "worker_lost", False),
        ("rejection", True, "lost", False),
        ("rejection", True, "lease_lost", True),
        ("rejection", False, "worker_lost", True),
        ("exact", True, "worker_lost", True),
    ],
)
async def test_what_a_lost_worker_may_have_shown_counts_where_it_may_not_be_said_again(
    office: Office, mode: SpeculationMode, is_streamed: bool, code: str, is_begun_again: bool
) -> None:
    """With other drafts a sequence in rejection mode goes on otherwise."""
    sampling = SamplingParameters(seed=1, max_tokens=8, speculation_mode=mode)
    record, decode = await running(office, is_streamed=is_streamed, sampling=sampling)
    await office.desk.attempt_failed(record, Refusal(code, ""), WorkerId("other"))
    if is_begun_again:
        await until(lambda: len(decode.jobs) == 2)

        assert [] == office.codes
    else:
        await office.bus.flush()

        assert [code] == office.codes
        office.assert_empty()


async def test_a_plain_request_goes_on_from_the_tokens_that_are_known(office: Office) -> None:
    _, decode = await running(office, is_streamed=False)
    await office.report(decode, held=[held(next_index=2, token_ids=PackedInts([5, 6]))])
    await office.report(decode, held=[held(next_index=3, token_ids=PackedInts([7]))])
    await office.report(decode, held=[held(next_index=9, token_ids=PackedInts([1]))])
    await office.report(decode, ended=[ended(code="lease_lost")])
    await until(lambda: len(decode.jobs) == 2)

    assert [5, 6, 7] == list(decode.jobs[1].output_token_ids), "nothing behind a gap"


async def test_reports_of_an_older_attempt_change_nothing(office: Office) -> None:
    record, decode = await running(office)
    await office.report(decode, ended=[ended(code="lease_lost")])
    await until(lambda: len(decode.jobs) == 2)
    await office.report(decode, held=[held(attempt=1, next_index=1, token_ids=PackedInts([9]))])
    await office.report(decode, ended=[ended(attempt=1, code="late")])

    assert ([], 2, []) == (record.token_ids, record.attempt, office.codes)


async def test_an_answer_by_an_older_attempt_ends_the_newer_one(office: Office) -> None:
    _, decode = await running(office)
    await office.report(decode, ended=[ended(code="lease_lost")])
    await until(lambda: len(decode.jobs) == 2)
    await office.report(decode, ended=[ended(attempt=1, **FINISHED)])

    assert 2 == decode.cancels[-1].attempt
    office.assert_empty()


async def test_an_attempt_that_is_over_before_it_was_sent_is_not_sent(office: Office) -> None:
    decode = await office.worker("d")
    record = make_record(route="local")
    office.desk.open(record)
    assert record is office.desk._place_next()
    await office.desk.ended(ended(was_answered=True), decode.worker_id)
    await office.desk._dispatch(record, 1)

    assert [] == decode.jobs
    office.assert_empty()
