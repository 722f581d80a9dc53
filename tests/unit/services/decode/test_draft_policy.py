"""Lengths follow what a sequence accepts and what a step shows; a span says why."""

from typing import Any
from unittest.mock import Mock

from slipstream.services.decode.draft_policy import DraftPolicy, Offer
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.services.decode.span_attributes import describe
from slipstream.shared.telemetry import names
from slipstream.shared.telemetry.spans import SpanSink
from slipstream.shared.telemetry.tracing import Tracer

from .decode_samples import make_sequence


def begun(policy: DraftPolicy, request: str = "r", **fields: Any) -> DecodeSequence:
    sequence = make_sequence([1, 2, 3], request=request, max_tokens=200, **fields)
    policy.begin(sequence)
    return sequence


def lengths(policy: DraftPolicy, *sequences: DecodeSequence) -> list[int]:
    return policy.lengths([Offer(each, 8) for each in sequences], sequences)


def test_who_accepts_more_is_drafted_further() -> None:
    policy = DraftPolicy(8)
    good, poor = begun(policy, "good"), begun(policy, "poor")
    policy.tested(good, 20, 19)
    policy.tested(poor, 20, 1)

    of_good, of_poor = lengths(policy, good, poor)
    assert 8 == of_good
    assert of_poor <= 1


def test_a_place_that_agrees_for_long_is_trusted_further() -> None:
    policy = DraftPolicy(8)
    sequence = begun(policy)
    for num_matched, num_accepted in ((1, 0), (9, 200)):
        policy.lengths([Offer(sequence, 8, num_matched)], [sequence])
        policy.tested(sequence, 200, num_accepted)

    assert [0] == policy.lengths([Offer(sequence, 8, 1)], [sequence])
    assert [8] == policy.lengths([Offer(sequence, 8, 16)], [sequence])
    assert [0] == policy.lengths([Offer(begun(policy, "newer"), 8, 1)], [sequence])


def test_a_newcomer_is_expected_to_do_as_others_did() -> None:
    policy = DraftPolicy(8)
    policy.tested(begun(policy), 2000, 0)
    unlucky = begun(policy, "new")

    assert [0] == lengths(policy, unlucky)
    policy.tested(begun(policy, "other"), 4000, 4000)
    assert [8] == lengths(policy, begun(policy, "newer"))


def test_now_and_then_one_is_verified_that_should_not_pay() -> None:
    policy = DraftPolicy(8)
    sequence = begun(policy)
    policy.tested(sequence, 2000, 0)
    found = [lengths(policy, sequence)[0] for _ in range(128)]

    assert 2 == sum(found)
    assert 128 == sequence.drafts.num_steps_unused


def test_a_request_may_say_how_many() -> None:
    policy = DraftPolicy(8)
    told, untold = begun(policy, "told", num_speculative_tokens=5), begun(policy, "untold")
    for each in (told, untold):
        policy.tested(each, 2000, 0)

    assert 5 == policy.max_num_tokens(told)
    assert [5, 0] == policy.lengths([Offer(told, 5), Offer(untold, 8)], [told, untold])


def test_the_span_says_why_nothing_was_drafted() -> None:
    policy = DraftPolicy(8)
    sequence = begun(policy)
    policy.tested(sequence, 2000, 0)
    for _ in range(3):
        lengths(policy, sequence)
    sink = Mock(SpanSink)
    sequence.span = Tracer(sink).start("test")
    describe(sequence, None)
    sequence.span.end()

    said = sink.record.call_args.args[0].attributes
    assert 3 == said[names.NUM_STEPS_DRAFT_UNUSED]
    assert said[names.DRAFT_ACCEPTANCE] < 0.01
    assert 0 == said[names.NUM_DRAFT_PROPOSED] == said[names.NUM_DRAFT_TESTED]
