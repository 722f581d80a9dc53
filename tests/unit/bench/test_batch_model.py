"""What lengths alone say: steps, padding, and what the allocated blocks hold."""

import pytest
from batch_model import (
    Progress,
    Slots,
    continuous_steps,
    last_block_share,
    limits,
    pad,
    slots_of,
    static_steps,
)

from slipstream.shared.measure.load.traces import Lengths


def _outputs(*numbers: int) -> list[Lengths]:
    return [Lengths(10, number) for number in numbers]


def test_a_static_group_takes_as_long_as_its_longest_answer() -> None:
    assert 9 + 4 + 7 == static_steps(_outputs(9, 1, 2, 4, 7), 2)


def test_a_continuous_seat_takes_the_next_request_when_it_is_free() -> None:
    """One seat has the 9; the other 1, 2, 4 and then 7."""
    assert 1 + 2 + 4 + 7 == continuous_steps(_outputs(9, 1, 2, 4, 7), 2)


def test_answers_of_one_length_gain_nothing() -> None:
    found = limits(_outputs(5, 5, 5, 5), 2, 100)

    assert (1.0, 1.0) == (found["static / continuous"], found["the same without end"])
    assert 1.0 == found["prompts padded / not"]


def test_limits_of_the_lengths() -> None:
    found = limits([Lengths(30, 9), Lengths(10, 1)], 2, 100)

    assert 9 / 9 == found["static / continuous"]
    assert 2 * 9 / 10 == found["the same without end"]
    assert 60 / 40 == found["prompts padded / not"]


def test_all_of_a_padded_group_are_as_long_as_its_longest() -> None:
    assert [Lengths(30, 9)] * 2 == pad([Lengths(30, 2), Lengths(10, 9)], 100)


def test_padding_leaves_every_request_whole_and_within_the_limit() -> None:
    """The long prompt leaves no room for the long answer: nobody's own tokens are cut for it."""
    group = [Lengths(90, 5), Lengths(10, 60)]

    assert [Lengths(90, 10), Lengths(40, 60)] == pad(group, 100)


@pytest.mark.parametrize(
    ("lengths", "share"),
    [
        (Lengths(31, 1), 0.0),  # one step, and the block is full
        (Lengths(32, 1), 31 / 64),
        (Lengths(32, 32), sum(range(32)) / (32 * 64)),
    ],
)
def test_the_last_block_is_half_empty_in_the_mean(lengths: Lengths, share: float) -> None:
    assert pytest.approx(share) == last_block_share([lengths])


def test_blocks_hold_tokens_or_say_why_not() -> None:
    """A stream of 40 tokens in 2 blocks, a prompt of 70 in 3 of which one is done, 4 granted."""
    stream = Progress(Lengths(33, 20), 7)
    prompt = Progress(Lengths(70, 20), 0)

    found = slots_of(9, num_committed_blocks=1 + 1, requests=[stream, prompt])

    assert Slots(allocated=288, tails=24 + 26, prompts=70 - 32, ahead=4 * 32) == found
    assert pytest.approx(100 * 50 / 288) == found.percent(found.tails)


def test_a_request_that_has_no_blocks_yet_makes_no_negative_slots() -> None:
    found = slots_of(0, 0, [Progress(Lengths(64, 20), 0)])

    assert Slots(allocated=0, tails=0, prompts=64, ahead=0) == found
    assert 0.0 == found.percent(found.prompts)


def test_samples_add_up() -> None:
    assert Slots(4, 6, 8, 10) == sum([Slots(1, 2, 3, 4), Slots(3, 4, 5, 6)], Slots())
