"""Who is refused before waiting in vain."""

from dataclasses import replace

from slipstream.shared.scheduling.classes import CLASSES
from slipstream.shared.scheduling.door import Outlook, judge, retry_ms
from slipstream.shared.scheduling.queue import WaitingQueue
from slipstream.shared.scheduling.wait_estimate import WaitEstimate

from .scheduling_samples import waiting

NOW = 100.0


def busy(work_ahead_s: float, busy_s: float = 0.0, *, is_speed_known: bool = True) -> Outlook:
    """Return a queue that is worked off at one second of work a second."""
    queue = WaitingQueue(100, 10_000)
    queue.add(waiting("ahead", work_s=work_ahead_s))
    estimate = WaitEstimate()
    estimate.looked(0.0, is_anyone_left=True)
    for number in range(1, 101):
        estimate.took(1.0, number)
        estimate.looked(number, is_anyone_left=True)
    return Outlook(
        queue, estimate, 0.1, busy_s, has_free_seats=False, is_speed_known=is_speed_known
    )


def test_whoever_waits_no_longer_than_promised_is_let_in() -> None:
    outlook = busy(CLASSES["standard"].ttft_target_s / 2)

    assert judge(waiting(), outlook, NOW) is None


def test_whoever_would_wait_longer_is_told_when_to_come_back() -> None:
    limit_s = CLASSES["standard"].ttft_target_s
    outlook = busy(2 * limit_s)
    late = judge(waiting(), outlook, NOW)

    assert late is not None
    assert f"at most {0.75 * limit_s:g} s" in late.message
    assert late.retry_after_ms is not None
    assert 0.7 * limit_s < late.retry_after_ms / 1000 < 1.5 * limit_s


def test_the_promise_is_of_the_first_token_and_the_prompt_takes_its_part() -> None:
    target_s = CLASSES["standard"].ttft_target_s
    outlook = busy(0.6 * target_s)

    assert judge(waiting(prefill_s=0.02 * target_s), outlook, NOW) is None
    assert judge(waiting(prefill_s=0.4 * target_s), outlook, NOW) is not None
    outlook = busy(0.4 * target_s)
    giant = waiting(prefill_s=5 * target_s)
    assert judge(giant, outlook, NOW) is None, "it would be late on an idle stack, too"


def test_a_better_class_does_not_wait_for_others() -> None:
    outlook = busy(1000)

    assert judge(waiting(latency_class="interactive"), outlook, NOW) is None


def test_a_deadline_that_can_not_be_met_is_refused_at_once() -> None:
    outlook = busy(10, busy_s=1)
    hopeless = waiting(deadline_at=NOW + 12, prefill_s=2)
    late = judge(hopeless, outlook, NOW)

    assert late is not None
    assert late.retry_after_ms is not None
    assert "deadline_ms" in late.message
    assert judge(waiting(deadline_at=NOW + 30, prefill_s=2), outlook, NOW) is None
    idle = replace(busy(10), queue=WaitingQueue(10, 10_000))
    alone = judge(waiting(deadline_at=NOW + 1, prefill_s=2), idle, NOW)
    assert alone is not None
    assert alone.retry_after_ms is None, "coming back helps nobody"
    assert "by itself" in alone.message


def test_what_is_not_known_refuses_nobody() -> None:
    outlook = replace(busy(1e6, is_speed_known=False), estimate=WaitEstimate())

    assert judge(waiting(), outlook, NOW) is None
    assert judge(waiting(deadline_at=NOW + 0.01, prefill_s=9), outlook, NOW) is None


def test_a_short_prompt_is_not_refused_for_long_ones_that_it_passes() -> None:
    """While seats are free; else it waits for one like everybody."""
    outlook = busy(1000)
    short = waiting(num_prompt_tokens=20, arrived_at=NOW)
    assert judge(short, outlook, NOW) is not None
    passing = replace(outlook, has_free_seats=True)

    assert judge(short, passing, NOW) is None
    assert judge(waiting(num_prompt_tokens=4000, arrived_at=NOW), passing, NOW) is not None


def test_a_short_prompt_does_not_wait_for_what_a_worker_computes() -> None:
    outlook = replace(busy(10, busy_s=4), queue=WaitingQueue(10, 10_000))

    assert judge(waiting(deadline_at=NOW + 1, prefill_s=0.1), outlook, NOW) is None
    assert judge(waiting(deadline_at=NOW + 3, prefill_s=2), outlook, NOW) is not None


def test_nobody_is_told_to_come_back_at_once_or_never() -> None:
    assert (1000, 5000, 600_000) == (retry_ms(0.001), retry_ms(5), retry_ms(1e9))
