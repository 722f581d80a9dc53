"""The sampler against a slow plain one, and what its noise may depend on."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from slipstream.shared.errors import NonFiniteLogitsError
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model.noise import gumbel_noise
from slipstream.shared.model.sampling import Sampler, raw_logprobs
from tests import plain_sampler

Row = npt.NDArray[np.float32]

_VOCAB_SIZE = 60
_PROMPT = [3, 3, 7, 20]
_EOS = 5


def _row(seed: int, size: int = _VOCAB_SIZE) -> Row:
    # Rounded, so that ties occur.
    return np.random.default_rng(seed).normal(0, 2, size).round(1).astype(np.float32)


_STAGES: list[dict[str, object]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.4},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 4},
    {"top_k": _VOCAB_SIZE + 1},
    {"top_k": -1},
    {"top_p": 0.0},
    {"top_p": 1e-9},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 12, "top_p": 0.8, "min_p": 0.05, "temperature": 1.4},
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.5, "temperature": 0.0},
    {"presence_penalty": 2.0},
    {"frequency_penalty": 1.0},
    {"presence_penalty": -1.0, "frequency_penalty": -0.5, "top_k": 5},
    {"logit_bias": {9: 100.0}},
    {"logit_bias": {t: -100.0 for t in range(_VOCAB_SIZE) if t not in {8, 11}}},
    {"min_tokens": 6, "stop_token_ids": (1, 2), "logit_bias": {_EOS: 6.0, 1: 6.0, 2: 6.0}},
    {
        "temperature": 0.8,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {4: 2.0, 6: -100.0},
        "min_tokens": 3,
    },
]


def _parameters(stage: dict[str, object], seed: int = 11) -> SamplingParameters:
    return SamplingParameters(seed=seed, **stage)  # type: ignore[arg-type] # a stage has fields of several types


@pytest.mark.parametrize("stage", _STAGES)
def test_it_chooses_what_the_plain_sampler_chooses(stage: dict[str, object]) -> None:
    parameters = _parameters(stage)
    sampler = Sampler(parameters, _PROMPT, eos_token_ids=[_EOS])
    output: list[int] = []
    for position in range(12):
        logits = _row(position)
        expected = plain_sampler.choose(logits, stage, parameters.seed, _PROMPT, output, [_EOS])
        output.append(sampler.sample(logits).token_id)

        assert expected == output[-1], f"output position {position}"


@pytest.mark.parametrize("stage", _STAGES)
def test_a_sampler_made_from_the_tokens_so_far_goes_on_alike(stage: dict[str, object]) -> None:
    """Hand-over, preemption and replay rebuild the state from prompt and output."""
    parameters = _parameters(stage)
    sampler = Sampler(parameters, _PROMPT, eos_token_ids=[_EOS])
    output = [sampler.sample(_row(position)).token_id for position in range(8)]
    replayed = Sampler(parameters, _PROMPT, output[:4], eos_token_ids=[_EOS])

    assert output[4:] == [replayed.sample(_row(position)).token_id for position in range(4, 8)]


def test_noise_depends_on_seed_position_and_token_id_only() -> None:
    """A truncation that leaves a token in the race leaves its noise alone."""
    everywhere = gumbel_noise(5, 3, np.arange(1000))
    some = np.array([7, 999, 0])

    assert np.array_equal(everywhere[some], gumbel_noise(5, 3, some))
    assert not np.isin(gumbel_noise(6, 3, some), everywhere).any()
    assert not np.isin(gumbel_noise(5, 4, some), everywhere).any()


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1])
def test_any_64_bit_seed_is_usable(seed: int) -> None:
    noise = gumbel_noise(seed, 0, np.arange(50_000))

    assert np.isfinite(noise).all()
    assert 0.5772 == pytest.approx(float(noise.mean()), abs=0.02)


@pytest.mark.parametrize("seed", [0, 1, 7, -5, 2**63 - 1, -(2**63)])
def test_noise_is_that_of_the_plain_sampler(seed: int) -> None:
    for position in (0, 1, 4000):
        expected = plain_sampler.gumbel_noise(seed, position, 5000)

        assert np.array_equal(expected, gumbel_noise(seed, position, np.arange(5000)))


def test_noise_is_the_same_on_every_machine() -> None:
    """A replay on another host gives the tokens that were already sent."""
    expected = [-0.47807019061, 0.333923519231, 0.125364427831]

    assert expected == pytest.approx(
        gumbel_noise(42, 17, np.array([0, 1, 49_151])).tolist(), abs=1e-9
    )


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e-6, 1e-5, 1e-4, 1e-3])
def test_tiny_temperatures_are_greedy_with_the_lowest_id_on_a_tie(temperature: float) -> None:
    logits = np.array([1.0, 9.0, 9.0, 2.0], np.float32)
    sampler = Sampler(SamplingParameters(seed=1, temperature=temperature), [])

    assert [1] * 20 == [sampler.sample(logits).token_id for _ in range(20)]


def test_ties_at_the_edge_of_top_k_and_top_p_go_to_the_lowest_ids() -> None:
    logits = np.zeros(10, np.float32)
    for stage in ({"top_k": 3}, {"top_p": 0.3}):
        chosen = {
            Sampler(_parameters(dict(stage), seed), []).sample(logits).token_id
            for seed in range(100)
        }

        assert {0, 1, 2} == chosen


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999_999])
def test_a_flat_distribution_over_a_large_vocabulary_keeps_the_right_nucleus(top_p: float) -> None:
    """Thousands of tokens are needed here, more than are looked at first."""
    logits = _row(0, size=20_000) * np.float32(0.3)
    parameters = _parameters({"top_p": top_p})

    assert plain_sampler.choose(logits, {"top_p": top_p}, parameters.seed, [], [], []) == (
        Sampler(parameters, []).sample(logits).token_id
    )


def test_presence_and_frequency_leave_the_first_token_alone() -> None:
    logits = _row(0)
    greedy = int(logits.argmax())
    parameters = _parameters({"temperature": 0.0, "presence_penalty": 2.0, "frequency_penalty": 2})

    assert greedy == Sampler(parameters, [greedy] * 4).sample(logits).token_id


def test_repetition_counts_the_prompt_from_the_first_token() -> None:
    logits = np.array([1.0, 2.0, 1.9], np.float32)
    parameters = _parameters({"temperature": 0.0, "repetition_penalty": 1.5})

    assert 2 == Sampler(parameters, [1, 1]).sample(logits).token_id


def test_the_row_of_the_caller_is_not_changed() -> None:
    logits = _row(0)
    before = logits.copy()
    Sampler(_parameters(_STAGES[-1]), _PROMPT, [4, 4], eos_token_ids=[_EOS]).sample(logits)

    assert np.array_equal(before, logits)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("row", [[1, math.nan], [-math.inf, -math.inf], [math.inf, 1]])
def test_a_row_that_is_not_finite_is_refused(row: list[float], temperature: float) -> None:
    sampler = Sampler(SamplingParameters(seed=1, temperature=temperature), [])

    with pytest.raises(NonFiniteLogitsError):
        sampler.sample(np.array(row, np.float32))
    assert 0 == sampler.num_output_tokens


def test_a_nan_is_refused_even_where_its_token_is_banned() -> None:
    sampler = Sampler(SamplingParameters(seed=1, logit_bias={0: -100.0}), [])

    with pytest.raises(NonFiniteLogitsError):
        sampler.sample(np.array([math.nan, 1.0], np.float32))


@pytest.mark.parametrize(("bias", "expected"), [(-99.9, 0), (-100.0, 1), (-100.1, 1)])
def test_a_bias_bans_a_token_from_minus_100_down(bias: float, expected: int) -> None:
    """Above that it is a bias like others, which a token may well outweigh."""
    sampler = Sampler(SamplingParameters(temperature=0.0, seed=1, logit_bias={0: bias}), [])

    assert expected == sampler.sample(np.array([150.0, 0.0], np.float32)).token_id


def test_banning_every_token_is_refused() -> None:
    parameters = SamplingParameters(seed=1, logit_bias={0: -100.0}, min_tokens=1)

    with pytest.raises(NonFiniteLogitsError):
        Sampler(parameters, [], eos_token_ids=[1]).sample(np.zeros(2, np.float32))


def test_masked_tokens_are_never_chosen() -> None:
    logits = np.array([-math.inf, 0.0, -math.inf, 0.0], np.float32)
    for stage in ({}, {"top_p": 0.999}, {"top_k": 3}, {"min_p": 0.01}, {"temperature": 1e6}):
        sampler = Sampler(_parameters(dict(stage)), [])

        assert {1, 3} == {sampler.sample(logits).token_id for _ in range(50)}


@pytest.mark.parametrize("num_logprobs", [0, 1, 5, _VOCAB_SIZE, _VOCAB_SIZE + 5])
def test_logprobs_are_raw_whatever_the_sampler_does(num_logprobs: int) -> None:
    logits = _row(4)
    parameters = _parameters({**_STAGES[-1], "num_logprobs": num_logprobs})
    wide = logits.astype(np.float64)
    expected = wide - math.log(math.fsum(np.exp(wide)))
    ranked = sorted(range(_VOCAB_SIZE), key=lambda t: (-wide[t], t))[:num_logprobs]

    token = Sampler(parameters, _PROMPT, [4], eos_token_ids=[_EOS]).sample(logits)

    assert token.logprobs is not None
    assert token.token_id == token.logprobs.token_id
    assert expected[token.token_id] == pytest.approx(token.logprobs.logprob, abs=1e-12)
    assert ranked == token.logprobs.top_token_ids
    assert expected[ranked] == pytest.approx(token.logprobs.top_logprobs, abs=1e-12)


def test_no_logprobs_unless_asked() -> None:
    assert Sampler(SamplingParameters(seed=1), []).sample(_row(0)).logprobs is None


def test_top_logprobs_leave_out_what_json_cannot_carry() -> None:
    logprobs = raw_logprobs(np.array([0.0, -math.inf, 0.0], np.float32), 2, 3)

    assert [0, 2] == logprobs.top_token_ids
    assert [math.log(0.5)] * 2 == pytest.approx(logprobs.top_logprobs)
