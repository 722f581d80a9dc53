"""Weights of 4 bits are found in a decoded checkpoint, and become integers that can be summed."""

import numpy as np
import numpy.typing as npt
import pytest

from slipstream.shared.model.int4_grid import Grid, IntegerGrid, find_grid, row_scales, to_integers

RNG = np.random.default_rng(4)


def checkpoint(num_levels: int = 16, num_outputs: int = 300) -> npt.NDArray[np.float32]:
    """Return weights as a file of 4 bits decodes to: half-precision steps and minima, float32."""
    codes = RNG.integers(0, num_levels, (num_outputs, 3, 32)).astype(np.float32)
    steps = RNG.uniform(1e-3, 2e-2, (num_outputs, 3, 1)).astype(np.float16).astype(np.float32)
    lowest = RNG.uniform(-0.2, 0.1, (num_outputs, 3, 1)).astype(np.float16).astype(np.float32)
    return (codes * steps + lowest).reshape(num_outputs, 96)


def decoded(grid: Grid) -> npt.NDArray[np.float64]:
    """Return the weights that a grid stands for."""
    codes = grid.codes.reshape(*grid.steps.shape, 32)
    return (grid.lowest[..., None] + grid.steps[..., None] * codes).reshape(grid.codes.shape)


@pytest.mark.parametrize("num_levels", [16, 15, 9, 2, 1])
def test_the_grid_of_a_decoded_checkpoint_is_found(num_levels: int) -> None:
    """Also where groups use few of the levels, or one."""
    weights = checkpoint(num_levels)

    grid = find_grid(weights)

    assert grid is not None
    assert grid.codes.max() <= 15
    np.testing.assert_allclose(decoded(grid), weights, atol=1e-7)


def test_a_single_weight_off_the_grid_is_noticed() -> None:
    weights = checkpoint()
    weights[270, 40] += 1e-3 * np.ptp(weights[270, 32:64])

    assert find_grid(weights) is None


def test_other_weights_are_on_no_grid() -> None:
    assert find_grid(RNG.standard_normal((8, 64)).astype(np.float32)) is None
    assert find_grid(checkpoint()[:, :48]) is None, "groups have 32 columns"


def test_integers_keep_four_digits_of_the_largest_weight() -> None:
    """So they lose next to nothing of what the checkpoint says."""
    weights = checkpoint()
    weights[7] = 0.0
    grid = find_grid(weights)
    assert grid is not None

    integers = to_integers(grid)

    off = integers.integers() * integers.scales[:, None].astype(np.float64) - weights
    largest = np.abs(weights).max(axis=1)
    assert (np.abs(off).max(axis=1) <= 3e-4 * largest).all()
    assert np.sqrt(np.mean(off**2)) < 1e-4 * np.sqrt(np.mean(weights.astype(np.float64) ** 2))


@pytest.mark.parametrize("num_inputs", [96, 4096])
def test_no_sum_with_the_largest_inputs_leaves_31_bits(num_inputs: int) -> None:
    """All weights as large as the largest: then the sum of a long row is what decides."""
    weights = np.ones((2, num_inputs))
    weights[1] *= -3.0

    integers = np.rint(weights / row_scales(weights)[:, None])

    assert np.abs(integers).max() <= 32639
    assert np.abs(integers).sum(axis=1).max() * 128 < 2**31


@pytest.mark.parametrize(("weight", "expected"), [(12_000, False), (12_500, True)])
def test_integers_whose_sums_could_overflow_are_known(weight: int, expected: bool) -> None:
    """1024 of them times 128 are half as much again as what is aimed at, or more."""
    codes = np.full((1, 1024), 7, np.uint8)
    middles = np.full((1, 32), weight, np.int16)
    grid = IntegerGrid(codes, np.ones_like(middles), middles, np.ones(1, np.float32))

    assert expected == grid.can_overflow()


def test_weights_of_more_than_16_bits_are_known() -> None:
    codes = np.full((1, 32), 15, np.uint8)
    params = np.full((1, 1), 4000, np.int16)

    assert IntegerGrid(codes, params, params, np.ones(1, np.float32)).can_overflow()


def test_nan_is_on_no_grid() -> None:
    weights = checkpoint()
    weights[200, 50] = np.nan

    assert find_grid(weights) is None
