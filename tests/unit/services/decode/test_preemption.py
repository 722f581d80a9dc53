"""Who gives way when blocks run out, and who may come back."""

from slipstream.services.decode.preemption import may_ask, num_spare, rank, victim
from slipstream.services.decode.sequence import DecodeSequence

from .decode_samples import make_sequence


def arrived(at: float, priority: int = 0) -> DecodeSequence:
    sequence = make_sequence([1], priority=priority)
    sequence.log.received_at = at
    return sequence


OLD, NEW = arrived(1.0), arrived(2.0)
URGENT, HUMBLE = arrived(3.0, priority=5), arrived(0.0, priority=-5)


def test_priority_counts_before_age() -> None:
    assert [URGENT, OLD, NEW, HUMBLE] == sorted([NEW, HUMBLE, OLD, URGENT], key=rank, reverse=True)


def test_the_newest_of_the_lowest_priority_gives_way() -> None:
    assert NEW is victim([OLD], [OLD, NEW, URGENT])
    assert HUMBLE is victim([URGENT, OLD], [OLD, NEW, URGENT, HUMBLE])


def test_the_least_important_waits_for_the_others_and_pushes_nobody_out() -> None:
    assert victim([NEW], [OLD, NEW]) is None
    assert victim([NEW], [NEW]) is None


def test_the_most_important_of_those_short_decides() -> None:
    assert NEW is victim([NEW, OLD], [OLD, NEW])


def asks(
    sequence: DecodeSequence,
    others: list[DecodeSequence],
    *,
    num_running: int = 3,
    is_anyone_short: bool = False,
) -> bool:
    return may_ask(sequence, others, num_running=num_running, is_anyone_short=is_anyone_short)


def test_it_asks_for_its_blocks_unless_one_that_runs_is_short() -> None:
    assert asks(NEW, [NEW])
    assert not asks(NEW, [NEW], is_anyone_short=True)
    assert asks(NEW, [NEW], num_running=0, is_anyone_short=True)


def test_the_others_can_grow_when_it_is_back() -> None:
    assert 3 == num_spare(num_running=3, num_granted=0)
    assert 1 == num_spare(num_running=3, num_granted=2)
    assert 0 == num_spare(num_running=3, num_granted=9)
    assert 0 == num_spare(num_running=0, num_granted=0)


def test_the_more_important_come_back_first() -> None:
    assert not asks(NEW, [NEW, OLD])
    assert asks(OLD, [NEW, OLD])
    assert not asks(NEW, [NEW, OLD], num_running=0)
