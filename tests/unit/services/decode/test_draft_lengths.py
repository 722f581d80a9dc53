"""Draft lengths make the most tokens a second; compared with trying every length."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.services.decode.draft_lengths import Candidate, worthwhile
from slipstream.shared.drafting.rate import Acceptance

_MAX = 5


def tokens_a_second(
    candidates: list[Candidate],
    lengths: tuple[int, ...],
    num_streams: int,
    costs: tuple[float, ...],
) -> float:
    """E / (gamma c + r), written plainly."""
    step_s, token_s, ask_s = costs
    expected = sum(
        each.acceptance**place
        for each, length in zip(candidates, lengths, strict=True)
        for place in range(1, length + 1)
    )
    asked_s = ask_s if any(lengths) else 0.0
    return (num_streams + expected) / (step_s + token_s * sum(lengths) + asked_s)


_rates = st.floats(0, 1)
_costs = st.tuples(st.floats(1e-3, 0.1), st.floats(1e-5, 0.02), st.sampled_from([0.0, 5e-4, 5e-3]))


@given(st.lists(st.tuples(_rates, st.integers(0, 3)), min_size=1, max_size=3), _costs)
def test_no_other_lengths_are_better(
    offers: list[tuple[float, int]], costs: tuple[float, ...]
) -> None:
    candidates = [Candidate(*offer) for offer in offers]
    num_streams = len(candidates) + 1
    chosen = tuple(worthwhile(candidates, num_streams, *costs))
    best = max(
        tokens_a_second(candidates, lengths, num_streams, costs)
        for lengths in itertools.product(*(range(each.max_num_tokens + 1) for each in candidates))
    )

    assert tokens_a_second(candidates, chosen, num_streams, costs) == pytest.approx(best, rel=1e-9)


def test_a_copied_text_is_drafted_far_ahead_and_a_guess_hardly() -> None:
    sure, unsure = Candidate(0.98, 15), Candidate(0.3, 15)

    assert [15] == worthwhile([sure], 1, 3.5e-3, 0.14e-3)
    assert worthwhile([unsure], 1, 3.5e-3, 0.14e-3) < [4]


def test_nothing_is_drafted_where_rows_cost_as_much_as_streams() -> None:
    num_streams = 32
    candidates = [Candidate(0.55, 15)] * num_streams

    assert [0] * num_streams == worthwhile(candidates, num_streams, 16e-3, 0.5e-3)


def test_the_way_to_the_proposals_must_be_won_back() -> None:
    candidate = Candidate(0.4, 4)

    assert worthwhile([candidate], 1, 3.5e-3, 0.14e-3, ask_s=0.4e-3) > [0]
    assert [0] == worthwhile([candidate], 1, 3.5e-3, 0.14e-3, ask_s=4e-3)


def test_acceptance_begins_with_what_others_had_and_follows_what_is_seen() -> None:
    acceptance = Acceptance(0.5)
    assert 0.5 == acceptance.rate
    for _ in range(10):
        acceptance.saw(4, 4)
    assert acceptance.rate > 0.95
    for _ in range(60):
        acceptance.saw(1, 0)
    assert acceptance.rate < 0.1
