"""The soak's test for growth finds a slow leak under noise, and nothing where there is none."""

from random import Random

import pytest

from tests.chaos.soak_slopes import trend_of

_NUM = 240
_TIMES_S = [each * 1.0 for each in range(_NUM)]  # four minutes
_LIMITS = (1024.0, 12_288.0)  # KiB, KiB an hour


def noise(seed: int, height: float = 300.0) -> list[float]:
    random = Random(seed)
    return [50_000 + random.gauss(0, height) for _ in range(_NUM)]


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_grow(seed: int) -> None:
    assert not trend_of(_TIMES_S, noise(seed)).grows(*_LIMITS)


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_of_ten_kib_a_second_grows(seed: int) -> None:
    leaking = [value + 10 * time_s for time_s, value in zip(_TIMES_S, noise(seed), strict=True)]

    assert trend_of(_TIMES_S, leaking).grows(*_LIMITS)


def test_peaks_do_not_grow() -> None:
    peaked = [each + 40_000 * (number % 11 == 0) for number, each in enumerate(noise(1))]

    assert not trend_of(_TIMES_S, peaked).grows(*_LIMITS)


def test_one_step_is_no_leak() -> None:
    """A buffer that was enlarged once stays as it is."""
    stepped = [each + 3000 * (number > 200) for number, each in enumerate(noise(2, 30.0))]

    assert not trend_of(_TIMES_S, stepped).grows(*_LIMITS)


def test_one_more_of_what_is_counted_grows() -> None:
    """File descriptors: one lost every ten seconds."""
    counted = [20.0 + time_s // 10 for time_s in _TIMES_S]

    assert trend_of(_TIMES_S, counted).grows(2, 30)
    assert not trend_of(_TIMES_S, [20.0 + time_s % 4 for time_s in _TIMES_S]).grows(2, 30)
