"""Who is refused before waiting in vain."""

from slipstream.shared.scheduling.classes import CLASSES
from slipstream.shared.scheduling.door import judge, retry_ms
from slipstream.shared.scheduling.queue import WaitingQueue
from slipstream.shared.scheduling.wait_estimate import WaitEstimate

from .scheduling_samples import waiting

NOW = 100.0


def busy(work_ahead_s: float) -> tuple[WaitingQueue, WaitEstimate]:
    """Return a queue that is worked off at one second of work a second."""
    queue = WaitingQueue(100, 10_000)
    queue.add(waiting("ahead", work_s=work_ahead_s))
    estimate = WaitEstimate()
    estimate.looked(0.0, is_anyone_waiting=True)
    for number in range(1, 101):
        estimate.took(1.0, number)
        estimate.looked(number, is_anyone_waiting=True)
    return queue, estimate


def test_whoever_waits_no_longer_than_promised_is_let_in() -> None:
    queue, estimate = busy(CLASSES["standard"].ttft_target_s / 2)

    assert judge(waiting(), queue, estimate, NOW) is None


def test_whoever_would_wait_longer_is_told_when_to_come_back() -> None:
    limit_s = CLASSES["standard"].ttft_target_s
    queue, estimate = busy(2 * limit_s)
    late = judge(waiting(), queue, estimate, NOW)

    assert late is not None
    assert f"at most {0.75 * limit_s:g} s" in late.message
    assert 0.7 * limit_s < late.retry_after_ms / 1000 < 1.5 * limit_s


def test_the_promise_is_of_the_first_token_and_the_prompt_takes_its_part() -> None:
    target_s = CLASSES["standard"].ttft_target_s
    queue, estimate = busy(0.6 * target_s)

    assert judge(waiting(prefill_s=0.02 * target_s), queue, estimate, NOW) is None
    assert judge(waiting(prefill_s=0.4 * target_s), queue, estimate, NOW) is not None
    queue, estimate = busy(0.4 * target_s)
    giant = waiting(prefill_s=5 * target_s)
    assert judge(giant, queue, estimate, NOW) is None, "it would be late on an idle stack, too"


def test_a_better_class_does_not_wait_for_others() -> None:
    queue, estimate = busy(1000)

    assert judge(waiting(latency_class="interactive"), queue, estimate, NOW) is None


def test_a_deadline_that_can_not_be_met_is_refused_at_once() -> None:
    queue, estimate = busy(10)
    hopeless = waiting(deadline_at=NOW + 11, work_s=4)
    late = judge(hopeless, queue, estimate, NOW)

    assert late is not None
    assert "deadline_ms" in late.message
    assert judge(waiting(deadline_at=NOW + 30, work_s=4), queue, estimate, NOW) is None


def test_what_is_not_known_refuses_nobody() -> None:
    queue, _ = busy(1e6)

    assert judge(waiting(), queue, WaitEstimate(), NOW) is None


def test_nobody_is_told_to_come_back_at_once_or_never() -> None:
    assert (1000, 5000, 600_000) == (retry_ms(0.001), retry_ms(5), retry_ms(1e9))
