"""How much of prompts a worker is given ahead."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.shared.ids import RequestId
from slipstream.shared.scheduling.prompt_window import PromptWindow

A, B, C = RequestId("a"), RequestId("b"), RequestId("c")


def test_a_worker_gets_prompts_until_it_has_enough() -> None:
    window = PromptWindow(1000)
    assert window.has_room(4000), "whatever its length: a worker must have something"
    window.give(A, 600)
    assert window.has_room(600)
    window.give(B, 600)
    assert not window.has_room(600)
    window.done(A)

    assert (600, True) == (window.num_tokens, window.has_room(600))


def test_a_short_prompt_passes_a_long_one_within_bounds() -> None:
    window = PromptWindow(1000)
    window.give(A, 4000)
    assert not window.has_room(1001)
    assert window.has_room(1000)
    window.give(B, 1000)

    assert not window.has_room(10), "what passes has its own bound"
    window.done(B)
    assert window.has_room(10)


def test_what_passed_does_not_keep_the_next_long_one_waiting() -> None:
    window = PromptWindow(1000)
    window.give(A, 4000)
    window.give(B, 900)
    window.done(A)

    assert (900, True) == (window.num_tokens, window.has_room(4000))


def test_what_is_less_urgent_keeps_nobody_waiting() -> None:
    window = PromptWindow(1000)
    window.give(A, 4000, rank=2)
    assert window.has_room(4000, rank=0)
    assert not window.has_room(4000, rank=2)
    window.give(B, 1000, rank=0)

    assert not window.has_room(4000, rank=0)
    assert not window.has_room(4000, rank=1)
    window.done(B)
    assert window.has_room(4000, rank=1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3000), st.booleans())))
def test_everything_given_comes_back(steps: list[tuple[str, int, bool]]) -> None:
    window = PromptWindow(1000)
    given_out: dict[str, int] = {}
    for name, num_tokens, is_done in steps:
        if is_done:
            assert window.done(RequestId(name)) == (given_out.pop(name, None) is not None)
        elif name not in given_out:
            window.give(RequestId(name), num_tokens)
            given_out[name] = num_tokens
        assert (sum(given_out.values()), len(given_out)) == (window.num_tokens, len(window))
    for name in list(given_out):
        window.done(RequestId(name))

    assert (0, True) == (window.num_tokens, window.has_room(5000))
