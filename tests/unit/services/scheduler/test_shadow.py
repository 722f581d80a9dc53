"""What a standby remembers of messages, and forgets."""

from typing import Any

from slipstream.services.scheduler.shadow import Shadow, Shadowed, digest_of
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.reports import (
    ForwardedRequest,
    RequestAdmitted,
    RequestsSettled,
)
from slipstream.shared.telemetry.tracing import Tracer

from .scheduler_samples import ended, held, make_report

SPAN = Tracer().start("root").context


def message(number: int = 1, payload: bytes = b"{}") -> Incoming:
    return Incoming("slipstream.v1.generate", payload, f"_INBOX.client.{number}")


def admitted(incoming: Incoming, request: str = "r", **fields: Any) -> RequestAdmitted:
    return RequestAdmitted(
        scheduler_epoch=1,
        digest=digest_of(incoming),
        request_id=RequestId(request),
        reply=incoming.reply,
        seed=1,
        root_span=SPAN,
        **fields,
    )


def settled(*requests: str) -> RequestsSettled:
    return RequestsSettled(scheduler_epoch=1, request_ids=[RequestId(each) for each in requests])


def make_shadow(**limits: Any) -> Shadow:
    return Shadow(**{"max_bytes": 1000, "max_age_s": 60.0, **limits})


def left(shadow: Shadow) -> list[Shadowed]:
    return list(shadow.drain())


def test_message_that_nobody_spoke_of_is_left() -> None:
    shadow = make_shadow()
    shadow.add(message(), 0.0)
    (entry,) = left(shadow)

    assert (message(), None) == (entry.incoming, entry.admitted)
    assert (0, 0) == (len(shadow), shadow.num_bytes)


def test_admitted_message_is_left_under_its_id() -> None:
    shadow = make_shadow()
    shadow.add(message(), 0.0)
    shadow.admitted(admitted(message()), 0.0)
    (entry,) = left(shadow)

    assert entry.admitted is not None
    assert "r" == entry.admitted.request_id


def test_what_has_its_ending_is_forgotten() -> None:
    shadow = make_shadow()
    for number in (1, 2, 3):
        shadow.add(message(number), 0.0)
    shadow.admitted(admitted(message(1)), 0.0)
    shadow.settled(settled("r"), 0.0)
    shadow.settled(RequestsSettled(scheduler_epoch=1, digests=[digest_of(message(2))]), 0.0)

    assert [message(3)] == [entry.incoming for entry in left(shadow)]


def test_worker_that_answered_settles_and_one_that_failed_does_not() -> None:
    shadow = make_shadow()
    for number, request in ((1, "a"), (2, "b")):
        shadow.add(message(number), 0.0)
        shadow.admitted(admitted(message(number), request), 0.0)
    shadow.report(make_report("d", held=[held("b", attempt=2)]))
    shadow.report(make_report("d", ended=[ended("a", was_answered=True), ended("b", attempt=3)]))
    (entry,) = left(shadow)

    assert (message(2), 3) == (entry.incoming, entry.attempt)


def test_streamed_choices_settle_one_by_one() -> None:
    shadow = make_shadow()
    shadow.add(message(), 0.0)
    shadow.admitted(admitted(message(), num_choices=2, is_streamed=True), 0.0)
    shadow.report(make_report("d", ended=[ended("rc1", was_answered=True)]))
    assert 1 == len(shadow)
    shadow.report(make_report("d", ended=[ended("rc0", was_answered=True)]))

    assert 0 == len(shadow)


def test_joined_choices_are_settled_by_the_scheduler_alone() -> None:
    shadow = make_shadow()
    shadow.add(message(), 0.0)
    shadow.admitted(admitted(message(), num_choices=2), 0.0)
    answered = [ended("rc0", was_answered=True), ended("rc1", was_answered=True)]
    shadow.report(make_report("d", ended=answered))

    assert 1 == len(shadow)


def test_word_that_overtakes_its_message_counts() -> None:
    shadow = make_shadow()
    shadow.admitted(admitted(message(1)), 0.0)
    shadow.settled(RequestsSettled(scheduler_epoch=1, digests=[digest_of(message(2))]), 0.0)
    shadow.admitted(admitted(message(3), "s"), 0.0)
    shadow.settled(settled("s"), 0.0)
    for number in (1, 2, 3):
        shadow.add(message(number), 1.0)
    (entry,) = left(shadow)

    assert message(1) == entry.incoming
    assert entry.admitted is not None


def test_same_message_twice_is_two_requests() -> None:
    shadow = make_shadow()
    for request in ("a", "b"):
        shadow.add(message(), 0.0)
        shadow.admitted(admitted(message(), request), 0.0)
    shadow.settled(settled("a"), 0.0)
    (entry,) = left(shadow)

    assert entry.admitted is not None
    assert "b" == entry.admitted.request_id


def test_new_standby_is_told_of_what_it_has_missed() -> None:
    told = ForwardedRequest(subject="slipstream.v1.generate", payload=b"{}", elapsed_ms=2000.0)
    shadow = make_shadow()
    shadow.admitted(admitted(message(), message=told), 10.0)
    shadow.admitted(admitted(message(), message=told), 10.0)
    (entry,) = left(shadow)

    assert (b"{}", message().reply, 8.0) == (
        entry.incoming.payload,
        entry.incoming.reply,
        entry.arrived_at,
    )


def test_shadow_is_bounded_and_lets_go_of_what_workers_hold_first() -> None:
    shadow = make_shadow(max_num=2)
    for number, request in ((1, "a"), (2, "b")):
        shadow.add(message(number), 0.0)
        shadow.admitted(admitted(message(number), request), 0.0)
    shadow.report(make_report("d", held=[held("b")]))
    shadow.add(message(3), 0.0)

    assert 1 == shadow.num_dropped
    assert [message(1), message(3)] == [entry.incoming for entry in left(shadow)]


def test_shadow_is_bounded_in_bytes_and_age() -> None:
    shadow = make_shadow(max_bytes=10)
    shadow.add(message(1, b"12345678"), 0.0)
    shadow.add(message(2, b"1234"), 30.0)
    assert (1, 4) == (len(shadow), shadow.num_bytes)
    shadow.drop_old(91.0)

    assert (0, 0) == (len(shadow), shadow.num_bytes)
