"""The console's model: reports and answers in, what has changed out."""

import pytest

from slipstream.services.gateway.journeys import public_name
from slipstream.services.gateway.pipeline import Pipeline
from slipstream.services.gateway.pipeline_rates import Growth, Rate
from slipstream.services.gateway.pipeline_requests import MAX_NUM_REQUESTS
from slipstream.services.gateway.pipeline_views import RequestView, ServiceView
from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.messages.common import Accepted, Phase, Role, Timings, Usage
from slipstream.shared.messages.generate import Finished
from slipstream.shared.messages.reports import EndedSequence, HeldSequence, WorkerReport
from slipstream.shared.telemetry import metric_names

ID = RequestId("abcdefghijklmnopqrstuvwx")
USAGE = Usage(
    num_prompt_tokens=40,
    num_output_tokens=9,
    num_cached_tokens=32,
    num_drafted_tokens=6,
    num_accepted_tokens=4,
)


def held(
    phase: Phase, num_tokens: int = 0, attempt: int = 1, request_id: RequestId = ID
) -> HeldSequence:
    return HeldSequence(request_id=request_id, attempt=attempt, phase=phase, next_index=num_tokens)


def report(role: Role, *entries: HeldSequence | EndedSequence) -> WorkerReport:
    return WorkerReport(
        worker_id=WorkerId(f"{role}-1"),
        role=role,
        epoch=1,
        number=1,
        num_seats=8,
        num_free_seats=7,
        held=[each for each in entries if isinstance(each, HeldSequence)],
        ended=[each for each in entries if isinstance(each, EndedSequence)],
    )


def finished(request_id: RequestId = ID) -> Finished:
    timings = Timings(
        queue_ms=5, prefill_ms=50, hand_over_ms=2, ttft_ms=60, tpot_ms=10, total_ms=140
    )
    return Finished(
        request_id=request_id,
        attempt=1,
        finish_reason="stop",
        usage=USAGE,
        timings=timings,
        num_tokens=9,
        text_length=20,
    )


class Watched:
    """A pipeline with a clock that is set by hand."""

    def __init__(self) -> None:
        self.pipeline = Pipeline()
        self.now_s = 100.0

    def at(self, ms: float) -> "Watched":
        self.now_s = 100.0 + ms / 1000
        return self

    def report(self, role: Role, *entries: HeldSequence | EndedSequence) -> None:
        self.pipeline.report(report(role, *entries), self.now_s)

    def accept(self, client_id: str | None = None, request_id: RequestId = ID) -> None:
        accepted = Accepted(request_id=request_id, num_prompt_tokens=40)
        self.pipeline.requests.accepted(accepted, client_id, self.now_s, self.now_s)

    def requests(self, since: int | None = None) -> list[RequestView]:
        return self.pipeline.update(since, 0, self.now_s).requests

    def request(self) -> RequestView:
        (found,) = self.requests()
        return found

    def service(self, role: Role) -> ServiceView:
        update = self.pipeline.update(None, 0, self.now_s)
        (found,) = [each for each in update.services if each.role == role]
        return found


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_request_walks_through_all_stages(watched: Watched) -> None:
    watched.at(0).accept("console-1-1")
    watched.at(10).report("prefill", held("prefilling"))
    watched.at(60).report("prefill", held("handing_over"))
    watched.at(62).report("decode", held("decoding"))
    watched.at(70).report("decode", held("decoding", 1))
    found = watched.request()

    assert ("decoding", "console-1-1") == (found.stage, found.client_id)
    assert ("prefill-1", "decode-1") == (found.prefill_worker, found.decode_worker)
    assert [
        ("queued", 0.0),
        ("prefilling", 10.0),
        ("handing_over", 60.0),
        ("decoding", 70.0),
    ] == found.marks


def test_a_request_that_was_accepted_tells_its_measured_times(watched: Watched) -> None:
    """Reports know less than the answer itself, whichever comes first."""
    watched.accept()
    watched.report("decode", held("decoding", 3))
    ended = EndedSequence(
        request_id=ID, attempt=1, was_answered=True, finish_reason="stop", usage=USAGE, total_ms=139
    )
    watched.report("decode", ended)

    assert watched.request().times is not None
    assert watched.request().times.queue_ms is None  # type: ignore[union-attr] # as just asserted
    watched.pipeline.requests.finished(finished(), watched.now_s)
    found = watched.request()

    assert found.times is not None
    assert (5, 50, 2, 60, 140) == (
        found.times.queue_ms,
        found.times.prefill_ms,
        found.times.hand_over_ms,
        found.times.ttft_ms,
        found.times.total_ms,
    )
    assert ("finished", 32, 6, 4) == (
        found.stage,
        found.num_cached_tokens,
        found.num_drafted_tokens,
        found.num_accepted_tokens,
    )


def test_no_update_holds_the_id_of_a_request(watched: Watched) -> None:
    """The id is the right to cancel and to resume: only a digest of it may be shown."""
    watched.accept("mine")
    watched.report("decode", held("decoding", 3))

    assert ID not in str(watched.pipeline.update(None, 0, watched.now_s))
    assert public_name(ID) == watched.request().name


def test_late_reports_move_nothing_back(watched: Watched) -> None:
    watched.report("decode", held("decoding", 2))
    watched.report("prefill", held("handing_over"))

    assert "decoding" == watched.request().stage
    watched.pipeline.requests.finished(finished(), watched.now_s)
    watched.report("decode", held("decoding", 4))

    assert ("finished", 9) == (watched.request().stage, watched.request().num_tokens)


def test_a_prompt_in_the_decode_worker_is_prefill_until_its_first_token(watched: Watched) -> None:
    """A decode worker names the phase in which it took a sequence for all of its life."""
    watched.report("decode", held("prefilling"))
    before = watched.request().stage
    watched.report("decode", held("prefilling", 1))

    assert ("prefilling", "decoding") == (before, watched.request().stage)


def test_another_attempt_begins_again(watched: Watched) -> None:
    watched.report("decode", held("decoding", 5))
    watched.report("prefill", held("prefilling", attempt=2))
    watched.report("decode", held("decoding", 6, attempt=1))
    found = watched.request()

    assert ("prefilling", 2, 5) == (found.stage, found.attempt, found.num_tokens)


@pytest.mark.parametrize(
    ("ended", "stage"),
    [
        (EndedSequence(request_id=ID, attempt=1, finish_reason="length"), "finished"),
        (EndedSequence(request_id=ID, attempt=1, finish_reason="abort"), "cancelled"),
        (EndedSequence(request_id=ID, attempt=1, code="cancelled"), "cancelled"),
        (EndedSequence(request_id=ID, attempt=1, code="kv_lost", was_answered=True), "failed"),
        # Not answered: another attempt may come.
        (EndedSequence(request_id=ID, attempt=1, code="lease_lost"), "decoding"),
    ],
)
def test_endings_are_told_apart(watched: Watched, ended: EndedSequence, stage: str) -> None:
    watched.report("decode", held("decoding", 1))
    watched.report("decode", ended)

    assert stage == watched.request().stage


def test_a_request_nobody_speaks_of_is_gone(watched: Watched) -> None:
    watched.at(0).report("decode", held("decoding", 1))
    watched.at(2900)
    before = watched.request().stage
    watched.at(3100)

    assert ("decoding", "gone") == (before, watched.request().stage)


def test_a_request_of_this_gateway_may_wait_as_long_as_it_takes(watched: Watched) -> None:
    watched.at(0).accept()
    watched.at(60_000)

    assert "queued" == watched.request().stage
    watched.pipeline.requests.left(ID, watched.now_s)

    assert "cancelled" == watched.request().stage


def test_only_what_has_changed_is_told(watched: Watched) -> None:
    other = RequestId("other")
    watched.report("decode", held("decoding", 1), held("decoding", 1, request_id=other))
    seen = watched.pipeline.version
    watched.report("decode", held("decoding", 1), held("decoding", 2, request_id=other))

    assert [public_name(other)] == [each.name for each in watched.requests(seen)]
    assert [] == watched.requests(watched.pipeline.version)
    assert 2 == len(watched.requests())


def test_the_number_of_requests_is_bounded(watched: Watched) -> None:
    """What has ended makes room; what runs stays, and what finds no room isn't shown."""
    ids = [RequestId(f"r{number}") for number in range(MAX_NUM_REQUESTS + 5)]
    for request_id in ids[:MAX_NUM_REQUESTS]:
        watched.report("decode", held("decoding", 1, request_id=request_id))
    watched.report("decode", held("decoding", 1, request_id=ids[-1]))

    assert public_name(ids[-1]) not in {each.name for each in watched.requests()}
    watched.pipeline.requests.finished(finished(ids[3]), watched.now_s)
    watched.report("decode", held("decoding", 1, request_id=ids[-1]))
    names_ = {each.name for each in watched.requests()}

    assert MAX_NUM_REQUESTS == len(names_)
    assert public_name(ids[-1]) in names_
    assert public_name(ids[3]) not in names_


def test_an_ending_that_is_repeated_brings_nothing_back(watched: Watched) -> None:
    ended = EndedSequence(request_id=ID, attempt=1, was_answered=True, finish_reason="stop")
    watched.report("decode", held("decoding", 1))
    watched.report("decode", ended)
    for number in range(MAX_NUM_REQUESTS):
        watched.report("decode", held("decoding", 1, request_id=RequestId(f"r{number}")))
    watched.pipeline.requests.finished(finished(RequestId("r0")), watched.now_s)
    watched.report("decode", ended)

    assert public_name(ID) not in {each.name for each in watched.requests()}


def test_speed_is_that_of_the_last_two_seconds(watched: Watched) -> None:
    watched.at(0).report("decode", held("decoding", 10))
    watched.at(1000).report("decode", held("decoding", 40))

    assert 20.0 == watched.service("decode").tokens_per_s
    watched.at(3500).report("decode", held("decoding", 40))

    assert 0.0 == watched.service("decode").tokens_per_s


def test_services_show_what_they_count(watched: Watched) -> None:
    def draft(number: int, accepted: int) -> dict[str, object]:
        return {metric_names.DRAFT_TOKENS.name: {"proposed": number, "accepted": accepted}}

    waiting = {metric_names.REQUESTS.name: {"scheduler": {"waiting": 7}}}
    watched.at(0).pipeline.figures("scheduler-1", "scheduler", waiting, watched.now_s)
    watched.pipeline.figures("decode-1", "decode", draft(100, 50), watched.now_s)
    watched.at(1000).pipeline.figures("decode-1", "decode", draft(140, 60), watched.now_s)

    assert 7 == watched.service("scheduler").num_waiting
    assert (40.0, 10.0) == (
        watched.service("decode").drafted_per_s,
        watched.service("decode").accepted_per_s,
    )


def test_a_service_that_is_silent_is_dropped(watched: Watched) -> None:
    watched.at(0).report("prefill")
    watched.at(4100)

    assert [] == watched.pipeline.update(None, 0, watched.now_s).services


def test_a_counter_that_starts_again_has_no_negative_growth() -> None:
    growth = Growth()
    growth.read(50, 0.0)
    growth.read(5, 1.0)

    assert 0.0 == growth.per_s


def test_a_rate_forgets() -> None:
    rate = Rate(window_s=2.0)
    rate.add(4, 0.0)
    rate.add(6, 1.5)

    assert (5.0, 3.0, 0.0) == (rate.per_s(1.9), rate.per_s(2.1), rate.per_s(3.6))
