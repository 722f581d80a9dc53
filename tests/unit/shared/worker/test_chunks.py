"""Prompts share what a step may spend, in rows and in time."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.shared.worker.chunks import TILE_ROWS, PromptBudget, TimeBudget, Waiting, share
from slipstream.shared.worker.step_cost import Prompts, StepCost, num_pairs

LONG, SHORT = Waiting(0, 4000), Waiting(0, 10)


def seconds_of(waiting: list[Waiting], shares: list[int], cost: StepCost) -> float:
    seconds = 0.0
    is_alone = True
    for prompt, rows in zip(waiting, shares, strict=True):
        if rows:
            shape = Prompts(rows, num_pairs(prompt.num_computed_tokens, rows))
            seconds += cost.of_prompts(shape, is_alone=is_alone)
            is_alone = False
    return seconds


def test_one_prompt_takes_all() -> None:
    assert [512] == share([LONG], PromptBudget(512))
    assert [10] == share([SHORT], PromptBudget(512))


def test_a_short_prompt_passes_a_long_one_and_costs_it_little() -> None:
    assert [502, 10] == share([LONG, SHORT], PromptBudget(512))


def test_a_short_prompt_passes_a_long_one_in_time_too() -> None:
    long, short = share(
        [Waiting(3584, 400), SHORT], PromptBudget(512, TimeBudget(0.02, StepCost()))
    )

    assert 10 == short
    assert 0 < long < 60


def test_behind_a_long_context_fewer_rows_fit_into_the_time() -> None:
    budget = PromptBudget(512, TimeBudget(0.05, StepCost()))
    (early,), (late,) = share([LONG], budget), share([Waiting(3500, 500)], budget)

    assert early > 2 * late
    assert 0 == early % TILE_ROWS == late % TILE_ROWS


def test_a_prompt_always_gets_on() -> None:
    assert [TILE_ROWS, 0] == share([LONG, LONG], PromptBudget(512, TimeBudget(0.0, StepCost())))
    assert [3] == share([Waiting(4000, 3)], PromptBudget(512, TimeBudget(0.0, StepCost())))
    assert [1] == share([LONG], PromptBudget(1, TimeBudget(0.0, StepCost())))
    assert [] == share([], PromptBudget(512))


_waiting = st.lists(
    st.builds(Waiting, st.integers(0, 5000), st.integers(1, 5000)), min_size=1, max_size=20
)


@given(waiting=_waiting, max_num_rows=st.integers(1, 2048), max_s=st.floats(0.001, 1))
def test_nobody_gets_more_than_the_budget_or_than_it_needs(
    waiting: list[Waiting], max_num_rows: int, max_s: float
) -> None:
    cost = StepCost()
    shares = share(waiting, PromptBudget(max_num_rows, TimeBudget(max_s, cost)))

    assert 0 < sum(shares) <= max_num_rows
    assert all(0 <= rows <= each.num_tokens for rows, each in zip(shares, waiting, strict=True))
    is_least = sum(shares) <= TILE_ROWS
    assert is_least or seconds_of(waiting, shares, cost) <= max_s * 1.01


def test_without_chunks_prompts_are_whole_and_one_is_enough() -> None:
    budget = PromptBudget(512, is_in_chunks=False)

    assert [4000, 0] == share([LONG, SHORT], budget)
    assert [10, 0, 0] == share([SHORT, LONG, SHORT], budget)
    assert [10, 10, 492] == share([SHORT, SHORT, Waiting(8, 492)], budget)
    assert [] == share([], budget)
