"""Steps of their own for those of which workers have died."""

from collections import Counter

from slipstream.shared.worker.turns import Turns


def test_without_any_all_step_together() -> None:
    assert ["a", "b"] == Turns().next(["a", "b"], str.isupper)


def test_each_of_them_has_steps_alone_and_the_others_have_theirs() -> None:
    turns = Turns()
    steps = Counter("".join(turns.next(["a", "B", "c", "D"], str.isupper)) for _ in range(30))

    assert {"ac": 10, "B": 10, "D": 10} == steps


def test_one_alone_has_every_step() -> None:
    turns = Turns()

    assert [["A"]] * 3 == [turns.next(["A"], str.isupper) for _ in range(3)]
