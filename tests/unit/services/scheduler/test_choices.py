"""Several choices of one request: seeds that can be repeated, and one answer of many."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.services.scheduler.choices import ChoiceGroup, choice_id, choice_seed
from slipstream.services.scheduler.validation import MAX_SEED
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import Failed, Timings, Usage
from slipstream.shared.messages.generate import Choice, Completion
from slipstream.shared.messages.packed import PackedInts

R = RequestId("r")


def completion(choice: int, **timings: float) -> Completion:
    text = "abc"[choice]
    return Completion(
        request_id=choice_id(R, choice),
        attempt=1 + choice,
        choices=[Choice(text=text, token_ids=PackedInts([choice]), finish_reason="stop")],
        usage=Usage(num_prompt_tokens=5, num_output_tokens=2 + choice, num_cached_tokens=4),
        timings=Timings(**timings),
        seed=choice_seed(9, choice),
    )


@given(st.integers(-MAX_SEED - 1, MAX_SEED), st.integers(0, 15), st.integers(0, 15))
def test_seeds_repeat_and_differ_and_are_seeds_of_requests(seed: int, one: int, other: int) -> None:
    assert choice_seed(seed, one) == choice_seed(seed, one)
    assert (one == other) == (choice_seed(seed, one) == choice_seed(seed, other))
    assert -MAX_SEED - 1 <= choice_seed(seed, one) <= MAX_SEED


def test_the_first_choice_is_the_one_that_would_come_alone() -> None:
    assert 42 == choice_seed(42, 0)


def test_the_answer_is_there_when_the_last_choice_is_and_in_order() -> None:
    group = ChoiceGroup(R, 9, 3)
    answers = [group.take(completion(choice, ttft_ms=9.0 - choice), choice) for choice in (2, 0, 1)]

    assert [None, None] == answers[:2]
    whole = answers[2]
    assert isinstance(whole, Completion)
    assert (R, 3, 9) == (whole.request_id, whole.attempt, whole.seed)
    assert [(0, "a"), (1, "b"), (2, "c")] == [(each.index, each.text) for each in whole.choices]
    assert [choice_seed(9, choice) for choice in range(3)] == [each.seed for each in whole.choices]


def test_what_was_generated_adds_up_and_the_prompt_counts_once() -> None:
    group = ChoiceGroup(R, 9, 2)
    group.take(completion(0, queue_ms=3, ttft_ms=5, tpot_ms=1, total_ms=20), 0)
    whole = group.take(completion(1, queue_ms=2, ttft_ms=9, tpot_ms=2, total_ms=30), 1)

    assert isinstance(whole, Completion)
    usage = Usage(num_prompt_tokens=5, num_output_tokens=5, num_cached_tokens=4)
    assert usage == whole.usage
    assert Timings(queue_ms=2, ttft_ms=5, tpot_ms=2, total_ms=30) == whole.timings


def test_one_failed_choice_is_a_failed_request_and_is_told_once() -> None:
    group = ChoiceGroup(R, 9, 3)
    group.take(completion(0), 0)
    failed = group.take(Failed("deadline_exceeded", "late", choice_id(R, 1), choice=1), 1)

    assert Failed("deadline_exceeded", "late", R, choice=1) == failed
    assert group.take(Failed("deadline_exceeded", "late"), 2) is None
    assert group.take(completion(2), 2) is None
