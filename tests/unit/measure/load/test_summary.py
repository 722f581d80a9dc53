"""The figures of a load: what they count, and over which window."""

import math
import random

import numpy as np
import pytest

from slipstream.shared.measure.load.samples import LoadRun, Sample
from slipstream.shared.measure.load.summary import (
    Percentiles,
    Target,
    Targets,
    percentile,
    summarize,
)

from .load_samples import make_request, make_sample

ANY = Targets(Target())


@pytest.mark.parametrize("num_values", [1, 2, 3, 10, 101, 1000])
def test_percentiles_are_those_of_numpy(num_values: int) -> None:
    rng = random.Random(num_values)
    values = sorted(rng.lognormvariate(0, 2) for _ in range(num_values))

    for percent in (0, 50, 95, 99, 100):
        assert pytest.approx(np.percentile(values, percent)) == percentile(values, percent)


def test_nothing_has_no_percentiles() -> None:
    assert None is Percentiles.of([])


def test_a_request_waits_from_when_it_was_due() -> None:
    """A client that is late must not hide what the server did: coordinated omission."""
    sample = make_sample(10.0, 10.5, 10.6, 10.8)
    sample.sent_s = 10.4

    assert pytest.approx(500) == sample.ttft_ms
    assert pytest.approx(150) == sample.tpot_ms


def test_a_first_frame_with_several_tokens_counts_for_the_first_token() -> None:
    sample = make_sample(0.0, 1.0)
    sample.request = make_request(5)
    sample.arrivals = [(1.0, 3), (1.2, 1), (1.4, 1)]

    assert pytest.approx(200) == sample.tpot_ms
    assert sample.is_served


def test_figures_are_those_of_the_window() -> None:
    """Requests by when they were due, tokens by when they came, gaps by both their ends."""
    before = make_sample(0.0, 0.5, 1.5, 2.5)  # two of its tokens come in the window
    within = make_sample(2.0, 2.2, 2.4, 6.0)  # the last one is late
    after = make_sample(5.5, 5.6)
    run = LoadRun([before, within, after], 1.0, 5.0)

    found = summarize([run], ANY)

    assert (1, 0, 0) == (found.num_requests, found.num_failed, found.num_unfinished)
    assert pytest.approx(4 / 4) == found.throughput_tok_s
    assert found.ttft_ms is not None
    assert pytest.approx(200) == found.ttft_ms.p99
    assert found.itl_ms is not None
    assert pytest.approx(np.percentile([200, 1000], 50)) == found.itl_ms.p50


@pytest.mark.parametrize(
    ("target", "is_met"),
    [
        (Target(500, 100), True),
        (Target(499, 100), False),
        (Target(500, 99), False),
        (Target(math.inf, 100), True),
        (Target(), True),
    ],
)
def test_a_target_is_kept_by_both_times(target: Target, *, is_met: bool) -> None:
    sample = make_sample(0.0, 0.5, 0.6, 0.7)

    assert is_met == target.is_met(sample)


def test_who_fails_is_cut_short_or_never_ends_keeps_no_target() -> None:
    failed = make_sample(0.0, 0.1, 0.2, error="kv_too_large: no")
    short = make_sample(0.0, 0.1, 0.2)
    short.request = make_request(3)
    endless = make_sample(0.0, 0.1, 0.2)
    endless.ended_s = None
    good = make_sample(0.0, 0.1, 0.2)

    found = summarize([LoadRun([failed, short, endless, good], 0.0, 2.0)], ANY)

    assert (4, 2, 1) == (found.num_requests, found.num_failed, found.num_unfinished)
    assert 0.25 == found.attainment
    assert 0.5 == found.goodput
    assert "kv_too_large: no" == found.first_error


def test_each_class_has_its_own_target() -> None:
    targets = Targets(Target(100, 1000), {"batch": Target(10_000, 1000)})
    slow = [make_sample(0.0, 5.0, latency_class=name) for name in ("interactive", "batch", None)]

    assert [False, True, False] == [targets.is_met(each) for each in slow]


def test_rounds_are_taken_together_and_apart() -> None:
    runs = [LoadRun([make_sample(0.0, *([0.5] * n))], 0.0, 1.0) for n in (2, 4)]

    found = summarize(runs, ANY)

    assert 3.0 == found.throughput_tok_s
    assert [2.0, 4.0] == found.throughputs_tok_s
    assert 2 == found.num_requests


def test_only_who_counts_is_counted() -> None:
    run = LoadRun(
        [make_sample(0.0, 0.1, latency_class="batch"), make_sample(0.0, 0.1, 0.3)], 0.0, 1.0
    )

    def is_batch(sample: Sample) -> bool:
        return sample.request.latency_class == "batch"

    found = summarize([run], ANY, is_batch)

    assert (1, 1.0) == (found.num_requests, found.throughput_tok_s)
    assert found.itl_ms is None
