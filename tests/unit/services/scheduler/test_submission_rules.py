"""What becomes of a submission after a try."""

import pytest

from slipstream.services.scheduler.submission_rules import (
    may_go_back,
    outcome_of,
    retry_delay_s,
)


@pytest.mark.parametrize(
    ("code", "num_deliveries", "outcome"),
    [
        (None, 1, "end"),
        (None, 99, "end"),
        ("cancelled", 1, "end"),
        ("invalid_request", 1, "bury"),
        ("model_not_found", 1, "bury"),
        ("deadline_exceeded", 1, "bury"),
        ("conflict", 1, "bury"),
        ("expired", 1, "bury"),
        ("overloaded", 1, "retry"),
        ("no_workers", 2, "retry"),
        ("worker_lost", 2, "retry"),
        ("lost", 2, "retry"),
        ("internal_error", 2, "retry"),
        ("something_new", 2, "retry"),
        ("worker_lost", 3, "bury"),
        ("lost", 4, "bury"),
        ("draining", 1, "retry"),
        ("draining", 3, "retry"),
        ("overloaded", 3, "retry"),
        ("overloaded", 99, "retry"),
        ("no_room", 3, "bury"),
    ],
)
def test_outcome(code: str | None, num_deliveries: int, outcome: str) -> None:
    assert outcome == outcome_of(code, num_deliveries, 3)


def test_each_rest_is_twice_the_last_up_to_a_minute() -> None:
    assert [1, 1, 2, 4, 8, 16, 32, 60, 60] == [retry_delay_s(number) for number in range(9)]
    assert 60 == retry_delay_s(10**6)


@pytest.mark.parametrize(
    ("num_deliveries", "retry_after_ms", "delay_s"),
    [(1, 20_000, 20), (7, 20_000, 60), (1, 86_400_000, 600), (1, 10, 1)],
)
def test_who_is_told_when_there_is_room_rests_until_then(
    num_deliveries: int, retry_after_ms: int, delay_s: float
) -> None:
    assert delay_s == retry_delay_s(num_deliveries, retry_after_ms)


def test_half_of_the_deliveries_are_left_for_real_tries() -> None:
    assert [True] * 5 + [False] * 5 == [may_go_back(number, 10) for number in range(1, 11)]
    assert not may_go_back(1, 1)
