"""A child that dies again and again is started less and less often."""

import itertools
import random

from slipstream.services.cli.backoff import FIRST_S, FORGIVEN_AFTER_S, LONGEST_S, Backoff


def test_waits_grow_to_a_limit() -> None:
    backoff = Backoff(random.Random(1))

    waits = [backoff.delay_after(0.1) for _ in range(8)]

    assert 0.75 * FIRST_S <= waits[0] <= FIRST_S
    growing = itertools.pairwise(waits[:5])
    assert all(1.4 < later / earlier < 2.8 for earlier, later in growing)
    assert all(0.75 * LONGEST_S <= wait <= LONGEST_S for wait in waits[5:])


def test_a_long_life_is_forgiven() -> None:
    backoff = Backoff(random.Random(1))
    for _ in range(8):
        backoff.delay_after(0.1)

    assert backoff.delay_after(FORGIVEN_AFTER_S) <= FIRST_S


def test_two_that_die_together_do_not_come_back_together() -> None:
    waits = {Backoff(random.Random(seed)).delay_after(0) for seed in range(20)}

    assert 20 == len(waits)
