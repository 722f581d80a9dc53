"""Rounding to 4 bits in groups: outputs are close, and every integer is one that kernels take."""

import numpy as np
import numpy.typing as npt
import pytest

from slipstream.shared.model.coordinate_descent import Descent
from slipstream.shared.model.gptq_groups import quantize_groups
from slipstream.shared.model.int4_grid import IntegerGrid

RNG = np.random.default_rng(3)
WEIGHTS = RNG.standard_normal((48, 192))
# Inputs of few dimensions, as real activations are: columns can stand in for one another.
INPUTS = RNG.standard_normal((2000, 24)) @ RNG.standard_normal((24, 192))
INPUTS += 0.1 * RNG.standard_normal(INPUTS.shape)
MOMENTS = INPUTS.T @ INPUTS


def values(grid: IntegerGrid) -> npt.NDArray[np.float64]:
    """Return the weights that integers stand for."""
    return grid.integers() * grid.scales[:, None].astype(np.float64)


def output_error(weights: npt.NDArray[np.float64]) -> float:
    """Return the mean square error of the outputs."""
    return float(np.mean((INPUTS @ (weights - WEIGHTS).T) ** 2))


def nearest(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Round each group of 32 to 16 levels between its ends: what most files of 4 bits hold."""
    groups = weights.reshape(len(weights), -1, 32)
    lowest, spread = groups.min(-1, keepdims=True), np.ptp(groups, axis=-1, keepdims=True)
    return (np.rint((groups - lowest) / spread * 15) / 15 * spread + lowest).reshape(weights.shape)


def test_outputs_are_much_closer_than_after_rounding_to_nearest() -> None:
    compensated = output_error(values(quantize_groups(WEIGHTS, MOMENTS)))

    assert compensated < output_error(nearest(WEIGHTS)) / 2


def test_looking_at_each_weight_again_lowers_the_error_that_is_left() -> None:
    targets = np.ascontiguousarray(WEIGHTS.T * 1000, np.float32)
    codes = RNG.integers(0, 16, targets.shape).astype(np.float32)
    factors = np.full((6, 48), 400, np.float32)
    middles = np.zeros_like(factors)
    before = _off(targets, codes, factors, middles)

    Descent(targets, codes, factors, middles, MOMENTS.astype(np.float32)).run()

    assert _off(targets, codes, factors, middles) < before / 20
    assert set(np.unique(codes)) <= set(range(16))
    assert (factors == np.rint(factors)).all()
    assert (middles == np.rint(middles)).all()


def _off(*parts: npt.NDArray[np.float32]) -> float:
    """Return the error of the outputs."""
    targets, codes, factors, middles = parts
    groups = codes.reshape(len(factors), 32, -1) - 7
    values = (groups * factors[:, None] + middles[:, None]).reshape(codes.shape)
    return float(np.mean((INPUTS @ (values - targets)) ** 2))


def test_without_moments_it_is_no_worse_than_rounding_to_nearest() -> None:
    """Better, by what clipping a group's ends gains."""
    off = values(quantize_groups(WEIGHTS, None)) - WEIGHTS

    assert np.mean(off**2) < 1.001 * np.mean((nearest(WEIGHTS) - WEIGHTS) ** 2)


def test_a_row_of_zeros_is_exact_and_inputs_that_never_occur_do_no_harm() -> None:
    weights, moments = WEIGHTS.copy(), MOMENTS.copy()
    weights[3] = 0.0
    moments[:, 5] = moments[5, :] = 0.0

    found = quantize_groups(weights, moments)

    assert not values(found)[3].any()
    assert output_error(values(found)) < np.inf


def test_a_few_huge_weights_stay_within_what_kernels_can_sum() -> None:
    weights = WEIGHTS.copy()
    weights[::3, ::50] *= 300.0

    assert not quantize_groups(weights, MOMENTS).can_overflow()


def test_rows_that_grow_while_errors_are_made_good_get_a_larger_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slipstream.shared.model.gptq_groups._HEADROOM", 0.5)

    found = quantize_groups(WEIGHTS, MOMENTS)

    assert not found.can_overflow()
    assert output_error(values(found)) < output_error(nearest(WEIGHTS)) / 2
