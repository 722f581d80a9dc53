"""Who gives its blocks back when they run out, and when it may come back. Pure."""

from collections.abc import Sequence

from slipstream.services.decode.sequence import DecodeSequence


def rank(sequence: DecodeSequence) -> tuple[int, float]:
    """Return the order of importance: priority, then who came first."""
    return (sequence.job.priority, -sequence.arrived_at)


def victim(
    short: Sequence[DecodeSequence], holding: Sequence[DecodeSequence]
) -> DecodeSequence | None:
    """
    Return who gives way so that the most important of those short of blocks gets on.

    The newest of the lowest priority goes first; None when that is the one which is short itself:
    the others end some time, and it has its blocks then.
    """
    first = max(short, key=rank)
    last = min(holding, key=rank, default=first)
    return None if last is first else last


def may_ask(
    sequence: DecodeSequence,
    others: Sequence[DecodeSequence],
    *,
    num_running: int,
    is_anyone_short: bool,
) -> bool:
    """
    Tell whether a sequence may ask for blocks beside preempted ones, of which it may be one.

    Not before the more important of the `others` that wait too, nor while one that runs is short.
    """
    if any(rank(other) > rank(sequence) for other in others if other is not sequence):
        return False
    return num_running == 0 or not is_anyone_short


def num_spare(num_running: int, num_granted: int) -> int:
    """
    Return how many blocks must be left when a preempted sequence has its own again.

    Each that runs could still grow by one: else it would be preempted again after a few steps, and
    all that was recomputed would be lost.
    """
    return max(0, num_running - num_granted)
