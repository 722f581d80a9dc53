"""Operations of single rows against their twins, at every ISA level that this machine has."""

import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch

from slipstream.kernels import reference, reference_bf16, reference_int8
from slipstream.kernels.cpu import loader
from slipstream.kernels.cpu.matrix import Matrix
from slipstream.kernels.cpu.operations import Operations, Quantized
from slipstream.shared.model.packing import (
    HADAMARD,
    interleave,
    pack_bf16,
    pack_float32,
    round_to_bf16,
)

from .operation_cases import (
    CASES,
    CODED,
    EPSILON,
    INT4,
    NORM,
    NUM_COLUMNS,
    PLAIN,
    WITH_OUTLIERS,
    Case,
    CodedMatrix,
    Poisoned,
    float_matrix,
    integers_of,
    order,
    random_rows,
)

LEVELS = loader.available_levels()
# Around the tiles of 16 and 32 rows, and the blocks of 4 and 12 of floats.
NUM_ROWS = (1, 2, 3, 4, 5, 8, 9, 13, 16, 17, 31, 32, 33, 70)
# Half a unit in the last place of float32: what one rounding costs.
UNIT = 2.0**-24

pytestmark = pytest.mark.skipif(not LEVELS, reason="the native kernels were not built")


@pytest.fixture(scope="module", params=LEVELS)
def operations(request: pytest.FixtureRequest) -> Iterator[Operations]:
    opened = Operations(loader.load(request.param), num_threads=2)
    yield opened
    opened.close()


def wide(values: npt.NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).double()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_level_gives_the_same_bits(case: Case) -> None:
    x = random_rows(37, case.num_inputs)
    found = []
    for level in LEVELS:
        opened = Operations(loader.load(level), num_threads=2)
        found.append(case.of(opened, x))
        opened.close()

    for other in found[1:]:
        for name, rows in found[0].items():
            np.testing.assert_array_equal(rows, other[name], name)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_row_among_others_has_the_bits_that_it_has_alone(
    case: Case, operations: Operations
) -> None:
    x = random_rows(max(NUM_ROWS), case.num_inputs)
    alone = [case.of(operations, x[row : row + 1]) for row in range(len(x))]

    for num_rows in NUM_ROWS:
        together = case.of(operations, x[-num_rows:])

        for name, rows in together.items():
            expected = np.concatenate([each[name] for each in alone[-num_rows:]])
            np.testing.assert_array_equal(rows, expected, f"{name} of {num_rows} rows")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_row_with_a_nan_stays_visible_and_alone(case: Case, operations: Operations) -> None:
    """One NaN, wherever it stands in its row, and not the largest number next to it."""
    x = random_rows(19, case.num_inputs)
    healthy = case.of(operations, x)

    for column in (0, case.num_inputs // 2, case.num_inputs - 1):
        ill = x.copy()
        ill[7, column] = np.nan
        found = case.of(operations, ill)

        name = "scales" if "scales" in found else "outputs"
        assert np.isnan(found[name][7]).any(), f"a NaN in column {column} was lost"
        others = np.arange(19) != 7
        for name, rows in found.items():
            np.testing.assert_array_equal(rows[others], healthy[name][others], name)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_threads_change_nothing(case: Case, num_threads: int, operations: Operations) -> None:
    x = random_rows(5, case.num_inputs)
    expected = case.of(operations, x)
    others = Operations(operations.kernels, num_threads)

    found = case.of(others, x)
    others.close()

    for name, rows in expected.items():
        np.testing.assert_array_equal(rows, found[name], name)


@pytest.mark.parametrize("size", [32, 96, 576])
def test_rms_norm_divides_by_the_root_of_the_mean_square(size: int, operations: Operations) -> None:
    """A mean of n squares, in 32 chains: n / 32 + 5 roundings, which the root halves."""
    x, weight = random_rows(6, size), random_rows(1, size, seed=1)[0]
    expected = reference.rms_norm(wide(x), wide(weight), EPSILON).numpy()

    found = operations.rms_norm(x, weight, EPSILON)

    np.testing.assert_allclose(found, expected, rtol=(size / 32 + 8) * UNIT)


@pytest.mark.parametrize("num_units", [16, 80, 1536])
def test_silu_and_multiply_gates_each_element(num_units: int, operations: Operations) -> None:
    """
    A dozen roundings, two of them of the polynomial for 2^x; and the exponent has one of its own.

    That one counts as often as the exponent is large.
    """
    gate, up = (random_rows(3, num_units, seed=seed) for seed in range(2))
    gate[0, :4] = (-200.0, 200.0, 0.0, -0.0)
    tiles = np.ascontiguousarray(interleave(gate.T, up.T).T)
    expected = reference.silu_and_multiply(wide(gate), wide(up)).numpy()

    found = operations.silu_and_multiply(tiles)

    # Powers of two end at 2^-115 here: what is smaller comes out larger.
    allowed = (16 + 2 * np.abs(gate)) * UNIT * np.abs(expected) + 1e-29
    assert (np.abs(found - expected) <= allowed).all()


def test_add_adds(operations: Operations) -> None:
    x, y = random_rows(5, 48), random_rows(5, 48, seed=1)

    found = operations.add(x, y.copy())

    np.testing.assert_array_equal(found, x + y)


@pytest.mark.parametrize("num_inputs", [1, 83, 576])
@pytest.mark.parametrize("num_columns", [32, NUM_COLUMNS])
def test_linear_float32_is_off_by_its_roundings(
    num_inputs: int, num_columns: int, operations: Operations
) -> None:
    """One a step, each at most a unit of the sum so far: no more than the sum of magnitudes."""
    x, weights = random_rows(max(NUM_ROWS), num_inputs), float_matrix(num_columns, num_inputs)
    expected = reference.linear(wide(x), wide(weights)).numpy()
    allowed = num_inputs * UNIT * reference.linear(wide(np.abs(x)), wide(np.abs(weights))).numpy()

    for num_rows in NUM_ROWS:
        found = operations.linear(x[:num_rows], [Matrix(**pack_float32(weights))], num_columns)

        assert (np.abs(found - expected[:num_rows]) <= allowed[:num_rows]).all(), num_rows


@pytest.mark.parametrize("num_inputs", [1, 83, 576])
@pytest.mark.parametrize("num_columns", [32, NUM_COLUMNS])
def test_linear_bf16_gives_the_bits_of_float32_on_the_numbers_that_the_twin_keeps(
    num_inputs: int, num_columns: int, operations: Operations
) -> None:
    x, weights = random_rows(max(NUM_ROWS), num_inputs), float_matrix(num_columns, num_inputs)
    kept = reference_bf16.narrow(torch.from_numpy(weights)).float().numpy()
    matrix, same = Matrix(**pack_bf16(weights)), Matrix(**pack_float32(kept))
    assert matrix.weights.nbytes * 2 == same.weights.nbytes

    for num_rows in NUM_ROWS:
        found = operations.linear(x[:num_rows], [matrix], num_columns)

        expected = operations.linear(x[:num_rows], [same], num_columns)
        np.testing.assert_array_equal(found, expected, f"{num_rows} rows")


@pytest.mark.parametrize("of", [PLAIN, WITH_OUTLIERS, *INT4], ids=str)
def test_quantize_gives_the_integers_and_scales_of_the_twin(
    of: CodedMatrix, operations: Operations
) -> None:
    x = random_rows(max(NUM_ROWS), of.packed.num_inputs)
    x[7] = 0
    ordered = torch.from_numpy(np.ascontiguousarray(x[:, of.columns]))
    integers, scales = reference_int8.quantize_rows(ordered, torch.from_numpy(of.outliers))

    found = operations.quantize(x, of.packed)

    np.testing.assert_array_equal(found.scales, scales.numpy())
    np.testing.assert_array_equal(integers_of(found, of), integers.numpy())


@pytest.mark.parametrize("num_inputs", [128, 1536])
def test_rotate_and_quantize_rounds_to_the_nearest(num_inputs: int, operations: Operations) -> None:
    """
    A sum of 128 inputs has 7 roundings, relative to the largest: 127 * 8 units of a code.

    So a code may be the neighbour of the twin's where the number lies in the middle of both.
    """
    of = CodedMatrix.random(NUM_COLUMNS, num_inputs, hadamard=HADAMARD)
    x = random_rows(max(NUM_ROWS), num_inputs)
    rotated = reference_int8.hadamard(wide(x), HADAMARD)
    integers, scales = reference_int8.quantize_rows(rotated)
    exact = (rotated / scales[:, None]).numpy()

    found = operations.quantize(x, of.packed)

    codes = integers_of(found, of)
    np.testing.assert_allclose(found.scales, scales.numpy(), rtol=16 * UNIT)
    assert (np.abs(codes - exact) <= 0.5 + 127 * 32 * UNIT).all()
    assert np.mean(codes == integers.numpy()) > 0.99


@pytest.mark.parametrize("of", CODED, ids=str)
def test_integer_sums_of_linear_are_exact(of: CodedMatrix, operations: Operations) -> None:
    """
    With scales of one the outputs are the sums, rounded on their way to float32.

    Once; of int4 both planes' sums, and what they add up to.
    """
    rows = operations.quantize(random_rows(max(NUM_ROWS), of.packed.num_inputs), of.packed)
    ones = np.ones(max(NUM_ROWS), np.float32)
    integers = rows.low[: len(ones)].astype(np.int64)
    sums = (integers @ of.codes.T.astype(np.int64)).astype(np.float32)
    if of.packed.format == "int4":
        high = rows.high[: len(ones)].astype(np.int64)
        sums += 256 * (high @ of.codes[:, of.outliers].T.astype(np.int64)).astype(np.float32)
    else:
        exact = wide(integers_of(rows, of)) @ wide(of.codes).T
        sums = exact.float().numpy()

    for num_rows in NUM_ROWS:
        some = Quantized(rows.low, rows.high, ones[:num_rows])
        found = operations.linear(some, [of.scaled_by_one()], NUM_COLUMNS)

        np.testing.assert_array_equal(found, sums[:num_rows], f"{num_rows} rows")


@pytest.mark.parametrize("of", INT4, ids=str)
def test_sums_of_the_largest_inputs_stay_exact(of: CodedMatrix, operations: Operations) -> None:
    """Every plane at its end, of either sign: the sums of groups fill 16 bits to the last."""
    ones = np.ones(max(NUM_ROWS), np.float32)
    rows = Quantized.empty(len(ones), of.packed)
    for low, high in ((-128, 127), (127, -128), (-128, -128)):
        rows.low[:], rows.high[:] = low, high
        totals = of.codes.astype(np.int64).sum(axis=1)
        expected = (low * totals).astype(np.float32)
        outliers = of.codes[:, of.outliers].astype(np.int64).sum(axis=1)
        expected += 256 * (high * outliers).astype(np.float32)

        for num_rows in NUM_ROWS:
            some = Quantized(rows.low, rows.high, ones[:num_rows])
            found = operations.linear(some, [of.scaled_by_one()], NUM_COLUMNS)

            np.testing.assert_array_equal(found, np.tile(expected, (num_rows, 1)))


@pytest.mark.parametrize("of", CODED, ids=str)
def test_outputs_of_linear_are_sums_times_both_scales(
    of: CodedMatrix, operations: Operations
) -> None:
    """
    Three roundings: of the sum, of the scales' product, of the product of both.

    Of int4 two sums are rounded, each of which may be larger than both together.
    """
    rows = operations.quantize(random_rows(21, of.packed.num_inputs), of.packed)
    expected = reference_int8.linear_of_integers(
        wide(integers_of(rows, of)), wide(rows.scales), wide(of.codes), wide(of.scales)
    ).numpy()

    found = operations.linear(rows, [of.packed], NUM_COLUMNS)

    integers = wide(integers_of(rows, of))
    largest = reference_int8.linear_of_integers(
        integers.abs(), wide(rows.scales), wide(of.codes).abs(), wide(of.scales)
    ).numpy()
    is_int4 = of.packed.format == "int4"
    allowed = 3.01 * UNIT * np.abs(expected) + is_int4 * 3 * UNIT * largest
    assert (np.abs(found - expected) <= allowed).all()


def test_matrices_take_turns(operations: Operations) -> None:
    """Run i takes matrix i modulo their count: the fourth of four runs over three, the first."""
    x = random_rows(3, 64)
    matrices = [Matrix(**pack_float32(float_matrix(32, 64) * factor)) for factor in (1, 2, 4)]
    expected = operations.linear(x, matrices[:1], 32)

    operations.num_times = 4
    found = operations.linear(x, matrices, 32)
    operations.num_times = 1

    np.testing.assert_array_equal(found, expected)


TOKENS = np.array([300, 0, 17, 17, 15, 16], np.int32)


@pytest.mark.parametrize("weight_format", ["float32", "bf16"])
def test_embed_looks_up_rows(weight_format: str, operations: Operations) -> None:
    table = random_rows(301, 96)
    kept = torch.from_numpy(table)
    stored: npt.NDArray[np.float32] | npt.NDArray[np.uint16] = table
    if weight_format == "bf16":
        kept, stored = reference_bf16.narrow(kept), round_to_bf16(table)
    expected = reference.embed(torch.from_numpy(TOKENS), kept).float().numpy()
    poisoned = Poisoned()

    found = operations.embed(TOKENS, stored, poisoned.floats(len(TOKENS), 96))

    poisoned.check()
    np.testing.assert_array_equal(found, expected)


def test_embed_looks_up_rows_of_the_packed_head(operations: Operations) -> None:
    """Of floats the very numbers; of int8 the product of code and scale, rounded once."""
    weights = float_matrix(301, 192)
    of = CodedMatrix.random(301, 192, has_outliers=True)
    ids = torch.from_numpy(TOKENS)
    expected = np.empty((len(TOKENS), 192), np.float32)
    expected[:, order(192)] = reference_int8.embed(ids, wide(of.codes), wide(of.scales)).numpy()
    poisoned = Poisoned()

    of_floats, of_bf16, of_codes = (
        operations.embed(TOKENS, head, poisoned.floats(len(TOKENS), 192))
        for head in (Matrix(**pack_float32(weights)), Matrix(**pack_bf16(weights)), of.packed)
    )

    poisoned.check()
    np.testing.assert_array_equal(of_floats, reference.embed(ids, wide(weights)).numpy())
    kept = reference_bf16.narrow(torch.from_numpy(weights)).float()
    np.testing.assert_array_equal(of_bf16, reference.embed(ids, kept).numpy())
    np.testing.assert_array_equal(of_codes, expected)


def test_seconds_are_those_of_one_run(operations: Operations) -> None:
    x = random_rows(1, 96)
    operations.num_times = 50
    started = time.perf_counter()
    operations.rms_norm(x, NORM, EPSILON)
    elapsed = time.perf_counter() - started
    operations.num_times = 1

    assert 0 < 50 * operations.seconds < elapsed
