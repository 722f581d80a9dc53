"""Rotary, the KV cache and attention against their twins, at every ISA level of this machine."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from slipstream.kernels import reference, reference_int8
from slipstream.kernels.cpu import loader
from slipstream.kernels.cpu.matrix import Floats
from slipstream.kernels.cpu.operations import Operations
from slipstream.kernels.cpu.paged_batch import BLOCK_SIZE
from slipstream.shared.model.packing import round_to_bf16

from .operation_cases import POISON
from .paged_cases import (
    LAYER_IDX,
    Cache,
    CodedCache,
    RowRange,
    attend,
    finish_heads,
    float_cache,
    head_sizes,
    unpacked_queries,
)

LEVELS = loader.available_levels()
FORMATS = ["float32", "bf16", "int8"]
# Odd groups of query heads, and all sizes that a head may have.
HEADS = [(9, 3, 64), (2, 2, 128), (4, 1, 256)]
# Around a block of 32 and a segment of 256; the last has three segments.
CONTEXTS = [1, 31, 32, 33, 255, 256, 257, 600]
NUM_ROWS = [1, 7]
# Half a unit in the last place of float32: what one rounding costs.
UNIT = 2.0**-24

pytestmark = pytest.mark.skipif(not LEVELS, reason="the native kernels were not built")
Heads = tuple[int, int, int]


@pytest.fixture(scope="module", params=LEVELS)
def operations(request: pytest.FixtureRequest) -> Iterator[Operations]:
    opened = Operations(loader.load(request.param), num_threads=2)
    yield opened
    opened.close()


def filled(operations: Operations, heads: Heads, kv_format: str) -> Cache:
    """Return sequences of all contexts whose keys and values are written."""
    cache = Cache(head_sizes(*heads, kv_format), CONTEXTS)
    finish_heads(operations, cache, cache.all_rows())
    return cache


def last_rows(num_rows: int) -> list[RowRange]:
    """Return the last rows of every sequence: one batch."""
    return [(idx, max(end - num_rows, 0), end) for idx, end in enumerate(CONTEXTS)]


def wide(values: npt.NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).double()


def rotated(cache: Cache, idx: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, keys and values of a sequence, rotated by the twin in float64."""
    sizes, qkv = cache.sizes, wide(cache.qkv[idx])
    cos, sin = (wide(table[: len(qkv)]) for table in (cache.cosines, cache.sines))
    query, key, value = qkv.split((sizes.num_heads, sizes.num_kv_heads, sizes.num_kv_heads), dim=1)
    return reference.rotary(query, cos, sin), reference.rotary(key, cos, sin), value


@pytest.mark.parametrize("heads", HEADS)
def test_float32_heads_are_rotated_into_their_slots(heads: Heads, operations: Operations) -> None:
    """
    Three roundings an element of size 10 or so, two more of a query that is divided.

    Slots of nobody, and the other layer, are poison as before: NaN equals NaN here.
    """
    cache = Cache(head_sizes(*heads, "float32"), [70, 33])
    expected = torch.full(float_cache(cache).shape, math.nan, dtype=torch.float64)
    queries = []
    for idx, table in enumerate(cache.tables):
        query, key, value = rotated(cache, idx)
        queries.append(query * math.log2(math.e) / math.sqrt(heads[2]))
        positions = torch.arange(len(key))
        slots = torch.tensor(table)[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        reference.write_kv(key, value, expected, LAYER_IDX, slots)

    found = finish_heads(operations, cache, cache.all_rows())

    np.testing.assert_allclose(found.floats, torch.cat(queries).numpy(), atol=50 * UNIT)
    np.testing.assert_allclose(float_cache(cache), expected.numpy(), atol=50 * UNIT)


@pytest.mark.parametrize("heads", HEADS)
def test_bf16_heads_are_those_of_float32_rounded(heads: Heads, operations: Operations) -> None:
    """
    Bit for bit as numpy rounds them, slots of nobody included; and queries stay as they are.

    Values go in as they come out of the projection: here with random upper halves of their bits,
    NaN and subnormal among them, and lower ones around a tie.
    """
    rng = np.random.default_rng(1)
    cache, exact = (
        Cache(head_sizes(*heads, kv_format), [70, 33]) for kv_format in ("bf16", "float32")
    )
    for qkv in cache.qkv:
        values = qkv[:, -heads[1] :]
        upper = rng.integers(0, 2**16, values.shape, np.uint32)
        lower = rng.choice(np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32), upper.shape)
        values[:] = (upper << 16 | lower).view(np.float32)
    exact.qkv = cache.qkv

    found = finish_heads(operations, cache, cache.all_rows())
    expected = finish_heads(operations, exact, exact.all_rows())

    np.testing.assert_array_equal(found.floats, expected.floats)
    rounded = round_to_bf16(exact.kv.view(np.float32))
    np.testing.assert_array_equal(cache.kv.view(np.uint16), rounded)


@pytest.mark.parametrize("heads", HEADS)
def test_int8_heads_are_rounded_to_the_nearest(heads: Heads, operations: Operations) -> None:
    """
    Values to the very integers of the twin: nothing is added up before they are rounded.

    Keys and queries are sums of up to 256 numbers: a code may be the neighbour of the twin's where
    the number lies in the middle of both, give or take 16 roundings.
    """
    cache = Cache(head_sizes(*heads, "int8"), [70, 33])
    dim, counts = heads[2], [70, 33]

    queries = finish_heads(operations, cache, cache.all_rows())

    numbers = unpacked_queries(queries, cache.sizes, counts)
    for idx, (table, part) in enumerate(zip(cache.tables, np.split(numbers, [70]), strict=True)):
        query, key, value = rotated(cache, idx)
        coded = CodedCache.of(cache).of_sequence(table, counts[idx])
        codes, scales = reference_int8.quantize_rows(value.float().reshape(-1, dim))
        np.testing.assert_array_equal(coded.values.reshape(-1, dim), codes.numpy())
        np.testing.assert_array_equal(coded.value_scales.flatten(), scales.numpy())
        turned = reference_int8.hadamard(key, dim) - wide(cache.key_means[LAYER_IDX])
        assert_rounded(coded.keys, coded.key_scales, turned.numpy(), 127)
        query = reference_int8.hadamard(query / math.sqrt(dim), dim)
        largest = np.abs(query.numpy()).max(-1, keepdims=True)
        assert (np.abs(part - query.numpy()) <= (0.5 / 32512 + 16 * UNIT) * largest).all()


def assert_rounded(
    codes: npt.NDArray[np.int8], scales: Floats, exact: npt.NDArray[np.float64], limit: int
) -> None:
    """Compare codes [.., dim] and their scales with numbers under a scale of their own."""
    wanted = np.abs(exact).max(-1) / limit
    np.testing.assert_allclose(scales, wanted, rtol=32 * UNIT)
    assert (np.abs(codes - exact / wanted[..., None]) <= 0.5 + limit * 32 * UNIT).all()


@pytest.mark.parametrize("heads", HEADS)
def test_int8_heads_leave_other_slots_alone(heads: Heads, operations: Operations) -> None:
    cache = Cache(head_sizes(*heads, "int8"), [70])
    finish_heads(operations, cache, [(0, 40, 41)])

    coded, slot = CodedCache.of(cache), (cache.tables[0][1], LAYER_IDX, slice(None), 40 % 32)
    for part in (coded.keys, coded.values, coded.key_scales, coded.value_scales):
        is_poison = np.ascontiguousarray(part).view(np.uint8) == POISON
        others = is_poison.reshape(*part.shape[:4], -1).all(-1)
        assert not others[slot].any()
        others[slot] = True
        assert others.all()


@pytest.mark.parametrize("kv_format", ["float32", "bf16"])
@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("heads", HEADS)
def test_float_attention_equals_the_twin(
    heads: Heads, num_rows: int, kv_format: str, operations: Operations
) -> None:
    """
    Of the stored numbers. A score, of size 30, is a sum in 16 chains: 20 roundings of its size.

    That is the relative error of a weight, and so of the result.
    """
    cache = filled(operations, heads, kv_format)
    rows = last_rows(num_rows)
    queries = finish_heads(operations, cache, rows).floats
    # The twin divides by sqrt(dim) itself, and its softmax has base e.
    expected = reference.paged_attention(
        wide(queries) * math.sqrt(heads[2]) / math.log2(math.e),
        wide(float_cache(cache)),
        LAYER_IDX,
        [torch.tensor(table) for table in cache.tables],
        [end - first for _, first, end in rows],
        CONTEXTS,
    ).numpy()

    found = attend(operations, cache, rows)

    np.testing.assert_allclose(found, expected, atol=30 * 20 * UNIT)


@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("heads", HEADS)
def test_bf16_attention_gives_the_bits_of_float32_on_the_same_numbers(
    heads: Heads, num_rows: int, operations: Operations
) -> None:
    cache = filled(operations, heads, "bf16")
    rows = last_rows(num_rows)
    found = attend(operations, cache, rows)
    wider = Cache(replace(cache.sizes, kv_format="float32"), CONTEXTS)
    queries = finish_heads(operations, wider, rows)
    wider.kv[:] = float_cache(cache).view(np.uint8).reshape(-1)

    expected = operations.attend(wider.batch(rows), LAYER_IDX, queries)

    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("heads", HEADS)
def test_int8_attention_equals_the_twin(
    heads: Heads, num_rows: int, operations: Operations
) -> None:
    """
    Of the stored integers, whose dot products are exact: three roundings of a score of size 30.

    A softmax weight of 16 bits may be the neighbour of the twin's: 1 / 65535 of the values' size.
    """
    cache = filled(operations, heads, "int8")
    rows = last_rows(num_rows)
    counts = [end - first for _, first, end in rows]
    queries = finish_heads(operations, cache, rows)
    numbers = np.split(unpacked_queries(queries, cache.sizes, counts), np.cumsum(counts)[:-1])
    expected = []
    for idx, (_, _, end) in enumerate(rows):
        coded = CodedCache.of(cache).of_sequence(cache.tables[idx], end)
        keys, scales = wide(coded.keys), wide(coded.key_scales)[..., None]
        values = (wide(coded.values), wide(coded.value_scales)[..., None])
        expected.append(
            reference_int8.attention_of_integers(wide(numbers[idx]), keys * scales, *values)
        )

    found = attend(operations, cache, rows)

    np.testing.assert_allclose(found, torch.cat(expected).numpy(), atol=30 * 8 * UNIT + 10 / 65535)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("heads", HEADS)
def test_every_level_gives_the_same_bits(heads: Heads, kv_format: str) -> None:
    caches, results = [], []
    for level in LEVELS:
        opened = Operations(loader.load(level), num_threads=2)
        caches.append(filled(opened, heads, kv_format))
        results.append(attend(opened, caches[-1], last_rows(7)))
        opened.close()

    for cache, result in zip(caches[1:], results[1:], strict=True):
        np.testing.assert_array_equal(cache.kv, caches[0].kv)
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("heads", HEADS)
def test_a_row_among_others_has_the_bits_that_it_has_alone(
    heads: Heads, kv_format: str, operations: Operations
) -> None:
    """Whether it is written into the cache in a chunk or by itself, and so it attends."""
    together = filled(operations, heads, kv_format)
    rows = last_rows(7)
    expected = attend(operations, together, rows)
    alone = Cache(together.sizes, CONTEXTS)
    finish_heads(operations, alone, [(idx, 0, first) for idx, first, _ in rows if first > 0])

    found = [
        attend(operations, alone, [(idx, position, position + 1)])
        for idx, first, end in rows
        for position in range(first, end)
    ]

    np.testing.assert_array_equal(alone.kv, together.kv)
    np.testing.assert_array_equal(np.concatenate(found), expected)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("kv_format", FORMATS)
def test_threads_change_nothing(kv_format: str, num_threads: int, operations: Operations) -> None:
    """Alone a thread takes groups whole; several share the segments of a few groups."""
    cache = filled(operations, HEADS[0], kv_format)
    others = Operations(operations.kernels, num_threads)

    for rows in (last_rows(1), last_rows(7), [(7, 599, 600)]):
        expected = attend(operations, cache, rows)
        found = attend(others, cache, rows)

        np.testing.assert_array_equal(found, expected)
    others.close()


@pytest.mark.parametrize("kv_format", FORMATS)
def test_runs_of_attention_take_layers_in_turn(kv_format: str, operations: Operations) -> None:
    """The third of three runs over two layers is about the first one's layer, and as it was."""
    cache = filled(operations, HEADS[0], kv_format)
    rows = last_rows(7)
    expected = attend(operations, cache, rows)

    operations.num_times = 3
    found = operations.attend(cache.batch(rows), LAYER_IDX, finish_heads(operations, cache, rows))
    operations.num_times = 1

    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("part", ["query", "key", "value"])
@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_nan_stays_visible_and_alone(kv_format: str, part: str, operations: Operations) -> None:
    """One in a head of one position of the longest sequence: its rows are ill, no other's."""
    rows = last_rows(7)
    healthy = filled(operations, HEADS[0], kv_format)
    expected = attend(operations, healthy, rows)
    cache = Cache(healthy.sizes, CONTEXTS)
    head = {"query": 0, "key": 9, "value": 12}[part]
    position = 598 if part == "query" else 300
    cache.qkv[-1][position, head, 5] = np.nan
    finish_heads(operations, cache, cache.all_rows())

    found = attend(operations, cache, rows)

    ill = [598 - 600] if part == "query" else slice(-7, None)
    heads = slice(0, 1) if part == "query" else slice(0, 3)
    assert np.isnan(found[ill, heads]).any(-1).all(), "the NaN was lost"
    expected[ill, heads] = found[ill, heads]
    np.testing.assert_array_equal(found, expected)
