"""Requests of a load: the same each time, as long as asked for, sharing what their trace says."""

from collections import Counter

import pytest

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.load.requests import (
    RequestMaker,
    SyntheticShapes,
    TraceShapes,
    check_lengths,
)
from slipstream.shared.measure.load.traces import Lengths, TracedRequest


def _maker(
    shapes: SyntheticShapes | TraceShapes, vocab_size: int = 50_000, seed: int = 1
) -> RequestMaker:
    return RequestMaker(shapes, vocab_size, seed, {}, {})


def test_a_request_depends_on_seed_and_number_alone() -> None:
    shapes = SyntheticShapes(Lengths(100, 20), 0.5, 1)
    forwards = [_maker(shapes).make(number) for number in range(5)]
    backwards = [_maker(shapes).make(number) for number in reversed(range(5))]

    assert forwards == backwards[::-1]
    assert 5 == len({each.token_ids for each in forwards})
    assert forwards[0].token_ids != _maker(shapes, seed=2).make(0).token_ids


def test_lengths_vary_around_their_means_and_no_further() -> None:
    shapes = SyntheticShapes(Lengths(100, 20), 0.5, 1)
    found = [shapes.shape(number).lengths for number in range(2000)]
    prompts = [each.num_prompt_tokens for each in found]

    assert (50, 150) == (min(prompts), max(prompts))
    assert 100 == pytest.approx(sum(prompts) / 2000, rel=0.03)
    assert 20 == pytest.approx(sum(each.num_output_tokens for each in found) / 2000, rel=0.03)
    assert max(each.num_tokens for each in found) <= shapes.max_num_tokens == 180


@pytest.mark.parametrize("vocab_size", [259, 49_152])
def test_tokens_are_words_of_the_vocabulary(vocab_size: int) -> None:
    maker = _maker(SyntheticShapes(Lengths(500, 1), 0.0, 1), vocab_size)
    token_ids = list(maker.make(0).token_ids)

    assert 500 == len(token_ids)
    assert 0 < min(token_ids)
    assert max(token_ids) < vocab_size - 3  # the fake engine's last three are special


def test_prompts_of_equal_hash_ids_begin_with_equal_tokens() -> None:
    """Scaled by a half an id stands for 256 tokens; what has another id, or none, is different."""
    trace = [
        TracedRequest(Lengths(1500, 100), 0.0, (1, 2, 3)),
        TracedRequest(Lengths(1100, 100), 0.0, (1, 2, 4)),
        TracedRequest(Lengths(700, 100), 0.0, (1, 5)),
    ]
    shapes = TraceShapes(trace, 800)
    assert 0.5 == shapes.factor
    first, second, third = (list(_maker(shapes).make(number).token_ids) for number in range(3))

    assert (750, 550, 350) == (len(first), len(second), len(third))
    assert first[:512] == second[:512]
    assert first[512:550] != second[512:]
    assert first[:256] == third[:256]
    assert first[256:350] != third[256:]


def test_a_partial_block_of_an_id_is_the_beginning_of_the_whole_one() -> None:
    trace = [
        TracedRequest(Lengths(700, 100), 0.0, (1, 2)),
        TracedRequest(Lengths(600, 200), 0.0, (1, 2)),
    ]
    first, second = (list(_maker(TraceShapes(trace, 800)).make(n).token_ids) for n in range(2))

    assert first[:600] == second


def test_a_trace_begins_again_with_other_tokens() -> None:
    maker = _maker(TraceShapes([TracedRequest(Lengths(10, 5)), TracedRequest(Lengths(20, 9))], 29))

    assert [(10, 5), (20, 9), (10, 5)] == [
        (len(each.token_ids), each.num_output_tokens) for each in map(maker.make, range(3))
    ]
    assert maker.make(0).token_ids != maker.make(2).token_ids


def test_classes_and_tenants_come_in_their_shares() -> None:
    shapes = SyntheticShapes(Lengths(1, 1), 0.0, 1)
    maker = RequestMaker(shapes, 1000, 1, {"interactive": 3, "batch": 1}, {"a": 1})
    found = [maker.make(number) for number in range(2000)]
    classes = Counter(each.latency_class for each in found)

    assert 1500 == pytest.approx(classes["interactive"], rel=0.1)
    assert 2000 == classes["interactive"] + classes["batch"]
    assert {"a"} == {each.tenant for each in found}


def test_requests_longer_than_the_context_are_refused_with_the_remedy() -> None:
    check_lengths(2048, 2048, "")
    with pytest.raises(ConfigurationError, match=r"2049 tokens.*context has 2048: lower --prompt"):
        check_lengths(2049, 2048, "lower --prompt")
