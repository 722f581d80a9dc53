"""Rounding that minds the inputs makes outputs better, and never leaves the grid."""

import numpy as np

from slipstream.shared.model.gptq import quantize_rows

RNG = np.random.default_rng(3)
WEIGHTS = RNG.standard_normal((48, 192))
# Inputs of few dimensions, as real activations are: columns can stand in for one another.
INPUTS = RNG.standard_normal((2000, 24)) @ RNG.standard_normal((24, 192))
INPUTS += 0.1 * RNG.standard_normal(INPUTS.shape)
MOMENTS = INPUTS.T @ INPUTS


def output_error(codes: np.ndarray, scales: np.ndarray) -> float:
    """Return the mean square error of the outputs."""
    wrong = codes * scales[:, None].astype(np.float64) - WEIGHTS
    return float(np.mean((INPUTS @ wrong.T) ** 2))


def test_outputs_are_much_closer_than_after_rounding_to_nearest() -> None:
    nearest = output_error(*quantize_rows(WEIGHTS, None))

    compensated = output_error(*quantize_rows(WEIGHTS, MOMENTS))

    assert compensated < nearest / 2


def test_without_moments_each_weight_goes_to_the_nearest_code() -> None:
    codes, scales = quantize_rows(WEIGHTS, None)

    assert np.abs(codes * scales[:, None] - WEIGHTS).max() <= 0.5001 * scales.max()
    assert codes.dtype == np.int8
    assert scales.dtype == np.float32


def test_codes_stay_within_127_and_a_row_of_zeros_is_exact() -> None:
    weights = WEIGHTS.copy()
    weights[3] = 0

    codes, scales = quantize_rows(weights, MOMENTS)

    assert np.abs(codes.astype(int)).max() <= 127
    assert not codes[3].any()
    assert np.isfinite(scales).all()


def test_inputs_that_never_occur_do_no_harm() -> None:
    moments = MOMENTS.copy()
    moments[:, 5] = moments[5, :] = 0

    codes, _ = quantize_rows(WEIGHTS, moments)

    assert np.abs(codes.astype(int)).max() <= 127


def test_strong_inputs_are_rounded_first_wherever_they_stand() -> None:
    """While many columns are left to make their errors good: where they stand is no matter."""
    inputs = INPUTS * np.geomspace(0.01, 1, INPUTS.shape[1])
    moments = inputs.T @ inputs
    turned = np.arange(INPUTS.shape[1])[::-1]

    codes, scales = quantize_rows(WEIGHTS, moments)

    other_codes, other_scales = quantize_rows(WEIGHTS[:, turned], moments[np.ix_(turned, turned)])
    assert np.mean(codes != other_codes[:, turned]) < 0.01
    np.testing.assert_array_equal(scales, other_scales)


def test_every_row_is_rounded_for_itself() -> None:
    """Rows are taken in portions, which must not show."""
    many = np.tile(WEIGHTS, (50, 1))

    codes, _ = quantize_rows(many, MOMENTS)

    alone, _ = quantize_rows(WEIGHTS, MOMENTS)
    assert np.mean(codes != np.tile(alone, (50, 1))) < 0.001
