"""Fits find the costs that made the samples, and say when they can't."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.shared.simulation.fit import FitError, Sample, fit, fit_cells

COST = st.sampled_from([0.0, 1e-5, 3e-4, 2e-3])


@given(st.tuples(st.sampled_from([1e-3, 2e-2]), COST, COST), st.integers(0, 1000))
def test_known_costs_are_found_again(costs: tuple[float, ...], seed: int) -> None:
    rng = random.Random(seed)
    features = [(1, rng.randint(1, 64), rng.randint(1, 5000)) for _ in range(40)]
    samples = [
        Sample(each, sum(c * x for c, x in zip(costs, each, strict=True))) for each in features
    ]

    assert costs == pytest.approx(fit(samples), rel=1e-6, abs=1e-12)


def test_no_cost_is_below_nothing_however_the_samples_lie() -> None:
    samples = [Sample((1, n), seconds) for n, seconds in ((1, 3.0), (2, 2.0), (3, 1.0))]

    assert all(cost >= 0 for cost in fit(samples))


def test_cells_of_the_engine_benchmark_give_the_costs_that_made_them() -> None:
    def cell(phase: str, batch: int, context: int, num_rows: int) -> dict[str, object]:
        pairs = num_rows * (context + num_rows / 2)
        streams_ms = 4 + 0.2 * batch + 0.001 * batch * (context + 1)
        prompt_ms = 4 + 0.2 * num_rows + 0.001 * pairs
        return {
            "phase": phase,
            "batch": batch,
            "context": context,
            "num_rows": num_rows,
            "step_ms": streams_ms if phase == "decode" else prompt_ms,
        }

    cells = [cell("prefill", 1, 0, 512)]
    cells += [cell("decode", batch, 540, 1) for batch in (1, 8, 32)]
    cells += [cell("decode", 1, 4096, 1)]
    cells += [cell("verify", 1, 540, num_rows) for num_rows in (4, 8, 16)]
    steps = fit_cells(cells)

    assert (4e-3, 2e-4, 1e-6) == pytest.approx(
        (steps.step_s, steps.stream_row_s, steps.stream_context_s), rel=1e-6
    )
    # Rows of a prompt see half of their own chunk: decode cells are off by half a token.
    assert (4e-3, 2e-4, 1e-6) == pytest.approx(
        (steps.prompt_step_s, steps.prompt_row_s, steps.prompt_pair_s), rel=1e-3
    )


def test_too_few_cells_are_refused_with_their_number() -> None:
    cell = {"phase": "decode", "batch": 1, "context": 10, "num_rows": 1, "step_ms": 5.0}

    with pytest.raises(FitError, match="1 steps of streams"):
        fit_cells([cell])
    with pytest.raises(FitError, match="above 0"):
        fit([Sample((1.0,), 0.0)])
