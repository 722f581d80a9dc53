"""Whose turn it is to lease blocks: no more than is computed next, and nobody starves."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.shared.ids import RequestId
from slipstream.shared.worker.prompt_gate import Claim, PromptGate, admitted

BUDGET = 16


def claim(name: str, num_tokens: int, rank: float = 0.0) -> Claim:
    return Claim((RequestId(name), 1), (0, rank), num_tokens)


def names(claims: list[Claim]) -> list[str]:
    return [each.attempt[0] for each in claims]


def test_the_next_long_prompt_enters_when_a_step_has_rows_left() -> None:
    waiting = [claim("old", 100, -1.0), claim("new", 100, -2.0)]

    assert ["old"] == names(admitted([], waiting, BUDGET))
    assert [] == names(admitted([claim("in", BUDGET)], waiting, BUDGET))
    assert ["old"] == names(admitted([claim("in", BUDGET - 1)], waiting, BUDGET))


def test_the_more_important_enters_first_whenever_it_came() -> None:
    early, late = claim("early", 100, -1.0), claim("late", 100, -2.0)
    late.rank = (1, -2.0)

    assert ["late"] == names(admitted([], [early, late], BUDGET))


def test_a_long_prompt_holds_no_much_shorter_one_up() -> None:
    inside = [claim("in", 100)]
    waiting = [claim("long", 26), claim("a", 25, -1), claim("b", 4, -2)]
    entered = admitted(inside, waiting, BUDGET)

    assert ["a"] == names(entered), "a quarter of what is to be computed; then their room is full"
    assert [True] == [each.is_passing for each in entered]
    assert [] == names(admitted([*inside, *entered], [claim("b", 4)], BUDGET))
    entered[0].num_tokens = 15
    assert ["b"] == names(admitted([*inside, *entered], [claim("b", 4)], BUDGET))


@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(-9, 0)), max_size=6),
    st.lists(st.tuples(st.integers(1, 40), st.floats(-9, 0)), max_size=6),
)
def test_somebody_is_inside_while_anybody_waits(
    inside: list[tuple[int, float]], waiting: list[tuple[int, float]]
) -> None:
    within = [claim(f"i{number}", *each) for number, each in enumerate(inside)]
    outside = [claim(f"w{number}", *each) for number, each in enumerate(waiting)]
    entered = admitted(within, outside, BUDGET)

    assert bool(within or entered) == bool(within or outside)
    # Each beyond the budget was let in before it was used up.
    for kind in (True, False):
        new = [each.num_tokens for each in entered if each.is_passing is kind]
        old = sum(each.num_tokens for each in within if each.is_passing is kind)
        assert not new or old + sum(new) - new[-1] < BUDGET


async def test_whoever_is_further_or_leaves_lets_the_next_in() -> None:
    gate = PromptGate(BUDGET)
    a, b, c = (((RequestId(name)), 1) for name in "abc")
    assert await gate.enter(a, (0, -1.0), 50, 0.01)
    assert not await gate.enter(b, (0, -2.0), 50, 0.01)
    assert not await gate.enter(c, (0, -3.0), 50, 0.01)
    assert await gate.enter(a, (0, -1.0), 50, 0.01), "whoever is inside stays there"
    gate.update(a, 20)
    assert (1, 2) == (gate.num_inside, gate.num_waiting)
    gate.update(a, 10)
    assert await gate.enter(b, (0, -2.0), 50, 0.01)
    gate.leave(a)
    gate.leave(a)
    assert not await gate.enter(c, (0, -3.0), 50, 0.01)
    gate.leave(b)
    assert await gate.enter(c, (0, -3.0), 50, 0.01)
    gate.leave(c)
    assert (0, 0) == (gate.num_inside, gate.num_waiting)


async def test_whoever_gives_up_waiting_takes_no_place() -> None:
    gate = PromptGate(BUDGET)
    a, b = (((RequestId(name)), 1) for name in "ab")
    await gate.enter(a, (0, -1.0), 50, 0.01)
    await gate.enter(b, (0, -2.0), 50, 0.01)
    gate.leave(b)
    gate.leave(a)

    assert (0, 0) == (gate.num_inside, gate.num_waiting)


def test_an_urgent_prompt_does_not_wait_for_what_is_less_urgent() -> None:
    urgent, equal = claim("urgent", 100, -5.0), claim("equal", 100, -4.0)
    urgent.rank = (1000, -5.0)

    assert ["urgent"] == names(admitted([claim("in", 100)], [equal, urgent], BUDGET))
