"""
In rejection mode a step keeps drafts and replaces one, and texts come as often as without.

Seeds and limits are as in `test_rejection_frequencies.py`.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from slipstream.services.decode.verify import verify
from slipstream.shared.messages.sampling import SamplingParameters, SpeculationMode
from slipstream.shared.model.acceptance import DraftToken
from slipstream.shared.model.constraint import Mask
from slipstream.shared.model.row_passes import Logits, NumpyPasses, Peak, RowPasses, row_passes
from slipstream.shared.model.sampling import SampledToken, Sampler
from tests.plain_sampler import Chances, distribution
from tests.unit.shared.model import chi_square

Row = npt.NDArray[np.float32]
Draft = Callable[[list[int], int], list[int]]  # what comes behind an output, at most so many
Check = Callable[[Sampler, Logits, Sequence[Peak], Sequence[int]], list[SampledToken]]

_MIN_P_VALUE = 1e-4  # of a right one
_MAX_P_VALUE = 1e-6  # of a wrong one
_SIZE = 5
_PROMPT = [1, 1, 4]
_NUM_SEEDS = 3000
# Penalties make the second token hang on the first, and on nothing that was only proposed.
_FIELDS: dict[str, Any] = {  # Any: of several types
    "temperature": 0.9,
    "top_p": 0.93,
    "frequency_penalty": 0.6,
    "repetition_penalty": 1.2,
}


@cache
def _row_behind(token_id: int) -> Row:
    """Return the logits of a model that looks at one token."""
    return np.random.default_rng(token_id).normal(0, 1, _SIZE).astype(np.float32)


def _rows(output: list[int], draft: Sequence[int]) -> Logits:
    last = output[-1] if output else _PROMPT[-1]
    return np.stack([_row_behind(each) for each in (last, *draft)])


def _step(
    sampler: Sampler, output: list[int], draft: Sequence[int], check: Check = verify
) -> list[SampledToken]:
    rows = _rows(output, draft)
    return check(sampler, rows, row_passes().peaks(rows), draft)


def _likeliest(output: list[int], num_tokens: int) -> list[int]:
    """Look one token ahead after another, blind to what the request asks for."""
    last, draft = output[-1] if output else _PROMPT[-1], []
    for _ in range(num_tokens):
        last = int(_row_behind(last).argmax())
        draft.append(last)
    return draft


def _one_and_the_same(_output: list[int], num_tokens: int) -> list[int]:
    return [2] * num_tokens


def _anything(output: list[int], num_tokens: int) -> list[int]:
    random = np.random.default_rng([len(output), *output])
    return random.integers(0, _SIZE, int(random.integers(0, num_tokens + 1))).tolist()


_DRAFTS = {"likeliest": _likeliest, "the same": _one_and_the_same, "anything": _anything}


def _answer(seed: int, draft: Draft, num_drafts: int, check: Check) -> list[int]:
    """Return a text of two tokens, or the beginning of a longer one."""
    parameters = SamplingParameters(seed=seed, speculation_mode="rejection", **_FIELDS)
    sampler, output = Sampler(parameters, _PROMPT), []
    while len(output) < 2:
        proposed = draft(output, num_drafts)
        output += [token.token_id for token in _step(sampler, output, proposed, check)]
    return output[:2]


def _counts(draft: Draft, num_drafts: int, check: Check = verify) -> npt.NDArray[np.int64]:
    answers = [_answer(seed, draft, num_drafts, check) for seed in range(_NUM_SEEDS)]
    return np.bincount([first * _SIZE + second for first, second in answers], minlength=_SIZE**2)


def _chances_of_answers(fields: dict[str, Any]) -> Chances:
    first = distribution(_row_behind(_PROMPT[-1]), fields, _PROMPT)
    seconds = [distribution(_row_behind(each), fields, _PROMPT, [each]) for each in range(_SIZE)]
    return np.concatenate([p * second for p, second in zip(first, seconds, strict=True)])


@pytest.mark.parametrize("num_drafts", [1, 3])
@pytest.mark.parametrize("draft", _DRAFTS)
def test_answers_come_as_often_as_without_drafts(draft: str, num_drafts: int) -> None:
    counts = _counts(_DRAFTS[draft], num_drafts)

    assert chi_square.p_value(counts, _chances_of_answers(_FIELDS)) > _MIN_P_VALUE


def test_an_answer_that_forgets_what_came_before_is_told() -> None:
    """The test of the test above."""
    counts = _counts(_likeliest, 3)
    without = _chances_of_answers(_FIELDS | {"frequency_penalty": 0.0})

    assert chi_square.p_value(counts, without) < _MAX_P_VALUE


def test_a_step_that_goes_on_behind_a_rejection_is_told() -> None:
    """As if the next row followed the token that came, and not the one that was proposed."""

    def never_stop(
        sampler: Sampler, rows: Logits, _peaks: Sequence[Peak], draft: Sequence[int]
    ) -> list[SampledToken]:
        return [
            sampler.sample(row, draft=DraftToken(token_id))
            for row, token_id in zip(rows, draft, strict=False)
        ]

    counts = _counts(_one_and_the_same, 3, never_stop)

    assert chi_square.p_value(counts, _chances_of_answers(_FIELDS)) < _MAX_P_VALUE


def _parameters(seed: int, **fields: Any) -> SamplingParameters:
    return SamplingParameters(seed=seed, speculation_mode="rejection", **fields)


def test_a_step_keeps_drafts_up_to_the_first_replaced_one_or_adds_one_behind_all() -> None:
    draft = _likeliest([], 3)
    lengths = set()
    for seed in range(200):
        sampler = Sampler(_parameters(seed), _PROMPT)
        came = [token.token_id for token in _step(sampler, [], draft)]
        lengths.add(len(came))

        assert draft[: len(came) - 1] == came[:-1]
        assert len(came) == sampler.num_output_tokens
        assert len(came) == len(draft) + 1 or draft[len(came) - 1] != came[-1]
    assert {1, 2, 3, 4} == lengths


@pytest.mark.parametrize("mode", ["exact", "rejection"])
def test_what_was_proposed_has_a_say_in_rejection_mode_only(mode: SpeculationMode) -> None:
    def first_tokens(proposed: int) -> list[int]:
        samplers = [
            Sampler(SamplingParameters(seed=seed, speculation_mode=mode), _PROMPT)
            for seed in range(100)
        ]
        return [_step(each, [], [proposed])[0].token_id for each in samplers]

    assert (mode == "exact") == (first_tokens(0) == first_tokens(2))


def test_the_same_drafts_give_the_same_tokens_however_often_work_began_anew() -> None:
    """A sampler made from the tokens so far decides like the one that chose them."""
    for seed in range(50):
        parameters = _parameters(seed, **_FIELDS)
        sampler, output = Sampler(parameters, _PROMPT), []
        while len(output) < 12:
            rebuilt = Sampler(parameters, _PROMPT, output)
            came = _step(sampler, output, _likeliest(output, 3))

            assert came == _step(rebuilt, output, _likeliest(output, 3))
            output += [token.token_id for token in came]


@pytest.mark.parametrize("fields", [{}, {"top_k": 3}, {"top_p": 0.8, "min_p": 0.1}])
def test_numpy_decides_like_the_native_passes(fields: dict[str, Any]) -> None:
    row = np.random.default_rng(3).normal(0, 2, 3000).astype(np.float32)
    draft = DraftToken(int(row.argmax()))

    def choose(seed: int, passes: RowPasses) -> int:
        sampler = Sampler(_parameters(seed, **fields), [], passes=passes)
        return sampler.sample(row, draft=draft).token_id

    for seed in range(100):
        assert choose(seed, NumpyPasses()) == choose(seed, row_passes())


def test_exact_mode_does_not_look_at_the_draft() -> None:
    row = _row_behind(0)
    for seed in range(100):
        parameters = SamplingParameters(seed=seed)
        plain = Sampler(parameters, []).sample(row)

        assert plain == Sampler(parameters, []).sample(row, draft=DraftToken(seed % _SIZE))


@pytest.mark.parametrize("temperature", [0.0, 1e-3])
def test_a_greedy_request_takes_the_likeliest_whatever_is_proposed(temperature: float) -> None:
    for token_id in range(_SIZE):
        sampler = Sampler(_parameters(1, temperature=temperature), [])
        draft = DraftToken(token_id)

        assert int(_row_behind(0).argmax()) == sampler.sample(_row_behind(0), draft=draft).token_id


def test_logprobs_are_those_of_the_model_and_not_of_the_decision() -> None:
    """Of tokens kept, replaced and added alike, with penalties and a temperature in force."""
    fields = _FIELDS | {"temperature": 1.5, "num_logprobs": 2}
    draft = _likeliest([], 3)
    for seed in range(20):
        for row, token in zip(
            _rows([], draft),
            _step(Sampler(_parameters(seed, **fields), _PROMPT), [], draft),
            strict=False,
        ):
            expected = row.astype(np.float64) - math.log(np.exp(row.astype(np.float64)).sum())

            assert token.logprobs is not None
            assert token.token_id == token.logprobs.token_id
            assert pytest.approx(expected[token.token_id]) == token.logprobs.logprob
            assert pytest.approx(sorted(expected)[:-3:-1]) == token.logprobs.top_logprobs


class _Alternating:
    """A constraint: odd and even tokens take turns, three in all, even ones first."""

    def __init__(self) -> None:
        self._num_tokens = 0

    @property
    def is_complete(self) -> bool:
        return self._num_tokens == 3

    def allowed(self) -> Mask:
        return np.arange(_SIZE) % 2 == self._num_tokens % 2

    def accept(self, token_id: int) -> None:
        assert self.allowed()[token_id], "not allowed"
        self._num_tokens += 1


def test_a_constraint_holds_at_each_position_and_ends_the_step() -> None:
    """Its masks follow the tokens that came; nothing is sampled behind its end."""
    drafts = ([0, 1, 2, 3], [0, 1, 4, 4], [1, 1, 1], [0, 3, 1], [2, 0])
    num_whole = 0
    for seed in range(300):
        draft = drafts[seed % len(drafts)]
        sampler = Sampler(_parameters(seed, temperature=1.5), _PROMPT, matcher=_Alternating())
        came = _step(sampler, [], draft)
        num_whole += len(came) == 3

        assert [each % 2 for each in range(len(came))] == [each.token_id % 2 for each in came]
        assert [idx == 2 for idx in range(len(came))] == [each.is_last for each in came]
    assert num_whole > 5


def test_the_end_is_not_taken_before_its_time() -> None:
    """A draft of an end-of-sequence token is replaced while `min_tokens` bans it."""
    for seed in range(100):
        sampler = Sampler(_parameters(seed, min_tokens=1), _PROMPT, eos_token_ids=[2])
        came = _step(sampler, [], [2, 2])

        assert came[0].token_id != 2
        assert len(came) == 1
