"""The native passes against those in numpy, at every ISA level that this machine has."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.kernels.cpu import loader
from slipstream.kernels.cpu.loader import NativeUnavailableError
from slipstream.kernels.cpu.sampling import SamplingKernels
from slipstream.shared.errors import NonFiniteLogitsError
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model import row_passes as module
from slipstream.shared.model.noise import gumbel_noise
from slipstream.shared.model.row_passes import (
    Floor,
    Logits,
    NativePasses,
    NumpyPasses,
    Peak,
    TokenIds,
    row_passes,
)
from slipstream.shared.model.sampling import SampledToken, Sampler

LEVELS = loader.available_levels()
PLAIN = NumpyPasses()
# Around the widths of vectors and blocks, and the largest that tests can afford often.
TEMPERATURES = st.sampled_from([1e-9, 0.0011, 0.05, 0.7, 1.0, 2.0, 1e4, 1e9])
NO_FLOOR = Floor(-math.inf, 2**31)
SIZES = [1, 2, 3, 5, 15, 16, 17, 31, 63, 64, 65, 127, 129, 255, 256, 257, 300, 511, 1025, 4099]

pytestmark = pytest.mark.skipif(not LEVELS, reason="the native kernels were not built")
thoroughly = settings(max_examples=min(80, settings().max_examples), deadline=None)
at_every_level = pytest.mark.parametrize("level", LEVELS)


@cache
def native(level: str) -> NativePasses:
    return NativePasses(SamplingKernels(loader.load(level)))


def peak_of(row: Logits) -> Peak:
    return PLAIN.peaks(row[np.newaxis])[0]


@st.composite
def rows(draw: st.DrawFn, sizes: tuple[int, ...] = tuple(SIZES)) -> Logits:
    """Return a row that a model and its masks could give: peaked, tied, flat or nearly empty."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.sampled_from(sizes))
    spread = draw(st.sampled_from([0.0, 0.05, 1.0, 4.0, 300.0]))
    row = generator.normal(draw(st.sampled_from([0.0, -40.0, 25.0, 1e15])), spread, size)
    match draw(st.sampled_from(["as it is", "tied", "masked", "peaked"])):
        case "tied":
            row = row.round()  # -0 too
        case "masked":
            row[generator.random(size) < draw(st.sampled_from([0.3, 0.99]))] = -np.inf
            row[generator.integers(size)] = 1.0
        case "peaked":
            row[generator.integers(size, size=3)] += 8.0
    return row.astype(np.float32)


@st.composite
def broken_rows(draw: st.DrawFn) -> Logits:
    """Return a row that no model may give."""
    row = draw(rows())
    value = draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    row[draw(st.lists(st.integers(0, len(row) - 1), max_size=5))] = value
    if draw(st.booleans()):
        row[:] = value
    return row


@at_every_level
@thoroughly
@given(row=broken_rows())
def test_the_peak_is_that_of_argmax(level: str, row: Logits) -> None:
    """The lowest id on a tie, the first NaN before anything, also where all is masked."""
    (expected,) = PLAIN.peaks(row[np.newaxis])
    ((token_id, logit),) = SamplingKernels(loader.load(level)).find_peaks(row[np.newaxis])

    assert int(row.argmax()) == expected.token_id == token_id
    assert expected.logit == pytest.approx(logit, abs=0, nan_ok=True)


@at_every_level
@pytest.mark.parametrize("size", [1, 3, 4, 63, 64, 65, 1000])
def test_a_peak_is_found_wherever_it_stands(level: str, size: int) -> None:
    batch = np.full((size, size), -1.0, np.float32)
    batch[np.arange(size), np.arange(size)] = 2.0

    assert [(i, 2.0) for i in range(size)] == native(level).peaks(batch)


@at_every_level
def test_a_batch_without_rows_has_no_peaks(level: str) -> None:
    rows_of_none = np.empty((0, 300), np.float32)

    assert [] == native(level).peaks(rows_of_none)
    assert [] == SamplingKernels(loader.load(level)).find_peaks(rows_of_none)


@at_every_level
@thoroughly
@given(row=rows(), data=st.data())
def test_the_largest_are_in_order_and_ties_go_to_the_lowest_ids(
    level: str, row: Logits, data: st.DataObject
) -> None:
    num_largest = data.draw(st.integers(-1, len(row) + 1) | st.integers(1, 60))
    ranked = sorted(range(len(row)), key=lambda token_id: (-row[token_id], token_id))

    assert ranked[: max(num_largest, 0)] == PLAIN.largest(row, num_largest).tolist()
    assert ranked[: max(num_largest, 0)] == native(level).largest(row, num_largest).tolist()


@at_every_level
@pytest.mark.parametrize("num_largest", [1, 5, 50, 384, 385, 3072, 3073, 49_152])
def test_the_largest_of_a_whole_vocabulary(level: str, num_largest: int) -> None:
    row = np.random.default_rng(num_largest).normal(0, 3, 49_152).round(2).astype(np.float32)
    expected = np.lexsort((np.arange(len(row)), -row))[:num_largest]

    assert np.array_equal(expected, native(level).largest(row, num_largest))


@at_every_level
@thoroughly
@given(row=rows(), temperature=TEMPERATURES)
def test_sums_of_weights_are_as_exact_as_promised(
    level: str, row: Logits, temperature: float
) -> None:
    """Both the native sum and that of numpy are within half the bound of the true one."""
    peak = peak_of(row)
    scores = row.astype(np.float64) / temperature
    exact = math.fsum(math.exp(score - peak.logit / temperature) for score in scores)
    bound = exact * module._sum_error(peak, temperature) / 2

    assert exact == pytest.approx(
        SamplingKernels(loader.load(level)).total_weight(row, peak.logit, temperature), abs=bound
    )
    assert exact == pytest.approx(module._weights(row, peak, temperature).sum(), abs=bound)


@at_every_level
@thoroughly
@given(row=rows())
def test_the_logarithm_of_the_sum_is_the_same_bits(level: str, row: Logits) -> None:
    peak = peak_of(row)

    assert PLAIN.log_total(row, peak) == native(level).log_total(row, peak)


@at_every_level
@thoroughly
@given(
    row=rows(),
    temperature=TEMPERATURES,
    top_p=st.sampled_from([0.0, 1e-9, 0.3, 0.95, 0.999_999, 1 - 2.0**-53]),
)
def test_the_nucleus_ends_where_numpy_ends_it(
    level: str, row: Logits, temperature: float, top_p: float
) -> None:
    peak = peak_of(row)

    assert PLAIN.nucleus(row, peak, temperature, top_p) == native(level).nucleus(
        row, peak, temperature, top_p
    )


@at_every_level
def test_a_nucleus_that_hangs_on_a_rounding_ends_where_numpy_ends_it(level: str) -> None:
    """top_p stands on the sum of some of the largest, and next to it on either side."""
    row = np.random.default_rng(5).normal(0, 1, 300).astype(np.float32)
    peak = peak_of(row)
    weights = module._weights(row, peak, 0.7)
    reached = np.cumsum(np.sort(weights)[::-1])[:150] / weights.sum()
    for top_p in (reached[:, np.newaxis] * (1 + np.arange(-3, 4) * 2.0**-53)).ravel().tolist():
        assert PLAIN.nucleus(row, peak, 0.7, top_p) == native(level).nucleus(row, peak, 0.7, top_p)


@at_every_level
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.95, 0.999])
@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
def test_the_nucleus_of_a_whole_vocabulary_needs_no_numpy(
    level: str, spread: float, top_p: float
) -> None:
    row = np.random.default_rng(3).normal(9, spread, 49_152).astype(np.float32)
    peak = peak_of(row)
    found = SamplingKernels(loader.load(level)).find_nucleus(row, peak.logit, 0.9, top_p, 1e-13)

    assert PLAIN.nucleus(row, peak, 0.9, top_p).token_id == found


def winner(row: Logits, temperature: float, seed: int, position: int, among: TokenIds) -> int:
    values = row[among].astype(np.float64) / temperature + gumbel_noise(seed, position, among)
    return int(among[values.argmax()])


@at_every_level
@thoroughly
@given(
    row=rows(),
    temperature=TEMPERATURES,
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**20),
    data=st.data(),
)
def test_the_winner_is_among_few_contenders(
    level: str, row: Logits, temperature: float, seed: int, position: int, data: st.DataObject
) -> None:
    peak = peak_of(row)
    ranked = PLAIN.largest(row, data.draw(st.integers(1, len(row))))
    floor = Floor(float(row[ranked[-1]]), int(ranked[-1]))
    left = PLAIN.contenders(row, peak, temperature, seed, position, floor)
    found = native(level).contenders(row, peak, temperature, seed, position, floor)

    assert sorted(ranked.tolist()) == left.tolist()
    assert winner(row, temperature, seed, position, left) == winner(
        row, temperature, seed, position, found
    )
    assert sorted(set(found.tolist()) & set(left.tolist())) == found.tolist()
    if module._is_ordinary(peak, temperature):
        assert len(found) <= 2, "the others are further away than roundings"


@at_every_level
@pytest.mark.parametrize("num_close", [1, 2, 17, 64, 65, 1000])
def test_contenders_closer_than_roundings_are_all_looked_at(level: str, num_close: int) -> None:
    """Where a logit takes the noise away again, float32 leaves it open who wins."""
    row = np.full(4099, -60.0, np.float32)
    close = np.random.default_rng(num_close).permutation(len(row))[:num_close]
    row[close] = -gumbel_noise(7, 3, close)
    found = native(level).contenders(row, peak_of(row), 1.0, 7, 3, NO_FLOOR)

    assert (sorted(close.tolist()) if num_close <= 64 else list(range(4099))) == found.tolist()


@at_every_level
@pytest.mark.parametrize("lead", [0.0, 11.0])
def test_the_winner_of_a_whole_vocabulary_may_come_from_far_behind(level: str, lead: float) -> None:
    """Of so many tokens some have more noise than that one is ahead."""
    row = np.random.default_rng(0).normal(0, 0.1, 49_152).astype(np.float32)
    row[7] += lead
    everyone, winners = np.arange(len(row)), set()
    for position in range(20):
        found = native(level).contenders(row, peak_of(row), 1.0, 5, position, NO_FLOOR)
        expected = winner(row, 1.0, 5, position, everyone)
        winners.add(expected)

        assert expected == winner(row, 1.0, 5, position, found)
    assert len(winners) > 1


STAGES = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.01, 0.6, 1.0, 1.7, 1e9]),
        "top_k": st.sampled_from([0, 0, 1, 3, 50, 10_000]),
        "top_p": st.sampled_from([1.0, 1.0, 0.0, 0.3, 0.5, 0.95, 0.999_999]),
        "min_p": st.sampled_from([0.0, 0.0, 0.05, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.5]),
        "logit_bias": st.sampled_from([{}, {0: -100.0}, {0: 7.0}]),
        "num_logprobs": st.sampled_from([None, 0, 1, 5, 20]),
    }
)


def sampled(sampler: Sampler, row: Logits) -> SampledToken | str:
    try:
        return sampler.sample(row)
    except NonFiniteLogitsError as error:
        return str(error)


@at_every_level
@thoroughly
@given(row=rows() | broken_rows(), stage=STAGES, seed=st.integers(-(2**63), 2**64 - 1))
def test_tokens_and_logprobs_are_the_same_bits_with_and_without_native_passes(
    level: str, row: Logits, stage: dict[str, object], seed: int
) -> None:
    parameters = SamplingParameters(seed=seed, **stage)  # type: ignore[arg-type] # of several types
    natively, plainly = (
        Sampler(parameters, [0], passes=passes) for passes in (native(level), PLAIN)
    )

    for _ in range(3):
        assert sampled(plainly, row) == sampled(natively, row)


@pytest.mark.parametrize("problem", ["not built", "older"])
def test_without_the_functions_numpy_serves(problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NativeUnavailableError(problem)

    monkeypatch.setattr(module, "load" if problem == "not built" else "SamplingKernels", refuse)
    row_passes.cache_clear()
    try:
        assert isinstance(row_passes(), NumpyPasses)
    finally:
        row_passes.cache_clear()
