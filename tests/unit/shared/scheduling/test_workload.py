"""What answers cost is learned."""

import pytest

from slipstream.shared.scheduling.workload import OutputLengths, Rates, work_s


def test_answers_are_as_long_as_they_were() -> None:
    lengths = OutputLengths()
    for _ in range(100):
        lengths.learn("a", "standard", 20)
        lengths.learn("a", "batch", 400)

    assert 20 == pytest.approx(lengths.expect("a", "standard", 1000), abs=1)
    assert 400 == pytest.approx(lengths.expect("a", "batch", 1000), abs=4)
    assert 30 < lengths.expect("unknown", "standard", 1000) < 400
    assert 5 == lengths.expect("a", "batch", 5), "never more than it may have"


def test_many_tenants_are_forgotten() -> None:
    lengths = OutputLengths()
    for number in range(10_000):
        lengths.learn(f"t{number}", "standard", 5)

    assert len(lengths._of_group) <= 4096


def test_work_is_prompt_and_output() -> None:
    rates = Rates(prompt_tokens_per_s=500, output_tokens_per_s=50)

    assert 2 + 3 == pytest.approx(work_s(1000, 150, rates))
    assert 55 == pytest.approx(rates.with_stream(100).output_tokens_per_s)
