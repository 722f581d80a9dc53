"""The sampler under a constraint: which tokens, in which order of rules, and resumed anywhere."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.services.decode.verify import verify
from slipstream.shared.errors import ConstraintError
from slipstream.shared.messages.sampling import Constraint, SamplingParameters
from slipstream.shared.model.row_passes import NumpyPasses, RowPasses, row_passes
from slipstream.shared.model.sampling import Sampler, raw_logprobs

from .constraint_samples import byte_vocabulary, matchers_of

Row = npt.NDArray[np.float32]

_VOCABULARY = byte_vocabulary(b"ab", b"ba", b'":', b"true", b"false", b"ok", b'{"', num_eos=2)
_EOS = _VOCABULARY.eos_token_ids
_MATCHERS = matchers_of(_VOCABULARY)
_PROMPT = [97, 97, 44]
_MAX_NUM_TOKENS = 40
_CONSTRAINTS = {
    "regex": Constraint("regex", "[ab]{3,12}-(x|yy)?[0-9]{1,4}"),
    "choice": Constraint("regex", "true|trust|false|ok"),
    "json": Constraint(
        "json",
        '{"type":"object","properties":{"ok":{"type":"boolean"},"n":{"type":"integer"}},'
        '"required":["ok","n"],"additionalProperties":false}',
    ),
}
_STAGES: list[dict[str, object]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 1.7, "top_p": 0.8},
    {"top_k": 3},
    {"top_k": 200, "min_p": 0.1},
    {"repetition_penalty": 1.6, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"logit_bias": {ord("x"): -100.0, ord("b"): 3.0}, "temperature": 0.6},
]


def _row(position: int, seed: int = 0) -> Row:
    # Rounded, so that ties occur.
    random = np.random.default_rng([seed, position])
    return random.normal(0, 2, len(_VOCABULARY.tokens)).round(1).astype(np.float32)


def _parameters(stage: dict[str, object], seed: int = 5) -> SamplingParameters:
    return SamplingParameters(seed=seed, **stage)  # type: ignore[arg-type] # a stage has fields of several types


def _sampler(
    constraint: str | Constraint,
    parameters: SamplingParameters,
    output: Sequence[int] = (),
    passes: RowPasses | None = None,
) -> Sampler:
    wanted = _CONSTRAINTS[constraint] if isinstance(constraint, str) else constraint
    matcher = _MATCHERS.open(wanted)
    return Sampler(parameters, _PROMPT, output, eos_token_ids=_EOS, passes=passes, matcher=matcher)


def _answer(sampler: Sampler, first: int = 0, seed: int = 0) -> list[int]:
    output = []
    for position in range(first, _MAX_NUM_TOKENS):
        token = sampler.sample(_row(position, seed))
        output.append(token.token_id)
        if token.is_last:
            break
    return output


@pytest.mark.parametrize("passes", [NumpyPasses(), row_passes()], ids=["numpy", "default"])
@pytest.mark.parametrize("stage", _STAGES)
@pytest.mark.parametrize("name", _CONSTRAINTS)
def test_it_chooses_as_if_all_that_is_not_allowed_were_banned(
    name: str, stage: dict[str, object], passes: RowPasses
) -> None:
    """The oracle is the free sampler, with a ban for each token that the mask leaves out."""
    parameters = _parameters(stage)
    sampler = _sampler(name, parameters, passes=passes)
    output: list[int] = []
    while len(output) < _MAX_NUM_TOKENS and not sampler.is_complete:
        matcher = _MATCHERS.open(_CONSTRAINTS[name])
        for token_id in output:
            matcher.accept(token_id)
        bans = dict.fromkeys(np.flatnonzero(~matcher.allowed()).tolist(), -100.0)
        banning = _parameters({**stage, "logit_bias": {**parameters.logit_bias, **bans}})
        plain = Sampler(banning, _PROMPT, output, eos_token_ids=_EOS, passes=NumpyPasses())
        logits = _row(len(output))

        expected = plain.sample(logits).token_id
        output.append(sampler.sample(logits).token_id)

        assert expected == output[-1], f"output position {len(output) - 1}"


@pytest.mark.parametrize("name", _CONSTRAINTS)
@given(
    seed=st.integers(0, 1000),
    cut=st.integers(0, _MAX_NUM_TOKENS),
    stage=st.sampled_from([*_STAGES, {"min_tokens": 9}, {"ignore_eos": True, "min_tokens": 2}]),
)
@settings(max_examples=40, deadline=None)
def test_resumed_anywhere_it_gives_the_same_tokens(
    name: str, seed: int, cut: int, stage: dict[str, object]
) -> None:
    parameters = _parameters(stage, seed)
    whole = _answer(_sampler(name, parameters), seed=seed)
    cut = min(cut, len(whole))
    resumed = _sampler(name, parameters, whole[:cut])

    if cut == len(whole) < _MAX_NUM_TOKENS:
        assert resumed.is_complete
    else:
        assert whole[cut:] == _answer(resumed, cut, seed)


@pytest.mark.parametrize("name", _CONSTRAINTS)
@pytest.mark.parametrize("seed", range(30))
def test_drafts_right_and_wrong_change_no_token(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    whole = _answer(_sampler(name, _parameters({}, seed)), seed=seed)
    sampler = _sampler(name, _parameters({}, seed))
    output: list[int] = []
    while len(output) < len(whole):
        num_drafts = int(random.integers(0, 5))
        draft = [*whole, *_EOS, *_EOS, *_EOS, *_EOS][len(output) : len(output) + num_drafts]
        if random.random() < 0.4 and draft:
            draft[-1] = int(random.integers(0, 256))
        rows = np.stack([_row(len(output) + i, seed) for i in range(len(draft) + 1)])
        output += [t.token_id for t in verify(sampler, rows, row_passes().peaks(rows), draft)]

    assert whole == output


def test_greedy_takes_the_largest_allowed_and_on_a_tie_the_lowest_id() -> None:
    row = np.full(len(_VOCABULARY.tokens), 9.0, np.float32)
    row[[ord("x"), ord("k"), ord("z")]] = 5.0
    row[ord("y")] = 4.0
    sampler = _sampler(Constraint("regex", "[kxyz]"), _parameters({"temperature": 0.0}))

    assert ord("k") == sampler.sample(row).token_id


def test_nothing_is_forced_that_could_be_written_in_another_way() -> None:
    """What must come next may be one long token or several short ones: the logits decide."""
    row = np.zeros(len(_VOCABULARY.tokens), np.float32)
    row[ord("t")] = 1.0
    sampler = _sampler(Constraint("regex", "true"), _parameters({"temperature": 0.0}))

    assert ord("t") == sampler.sample(row).token_id


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_b115_the_end_of_the_grammar_wins_over_min_tokens(
    temperature: float, *, ignore_eos: bool
) -> None:
    """{"ok": boolean} ends long before 64 tokens: no row is ever emptied."""
    parameters = _parameters(
        {"min_tokens": 64, "max_tokens": 80, "temperature": temperature, "ignore_eos": ignore_eos}
    )
    constraint = Constraint(
        "json",
        '{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],'
        '"additionalProperties":false}',
    )
    sampler = _sampler(constraint, parameters)
    output = _answer(sampler)

    assert sampler.is_complete
    assert _VOCABULARY.output_of(output).endswith(b"}")
    assert len(output) < _MAX_NUM_TOKENS


def test_min_tokens_puts_the_end_off_while_something_else_is_possible() -> None:
    row = np.zeros(len(_VOCABULARY.tokens), np.float32)
    row[_EOS] = 50.0
    sampler = _sampler(
        Constraint("regex", "a{0,5}"), _parameters({"min_tokens": 3, "temperature": 0.0})
    )

    assert [97, 97, 97, _EOS[0]] == [sampler.sample(row).token_id for _ in range(4)]
    assert sampler.is_complete


def test_ignore_eos_goes_on_to_where_only_the_end_is_possible() -> None:
    row = np.zeros(len(_VOCABULARY.tokens), np.float32)
    row[_EOS] = 50.0
    sampler = _sampler(
        Constraint("regex", "a{0,5}"), _parameters({"ignore_eos": True, "temperature": 0.0})
    )
    tokens = [sampler.sample(row) for _ in range(5)]

    assert [(97, False)] * 4 + [(97, True)] == [(t.token_id, t.is_last) for t in tokens]


def test_an_empty_answer_ends_with_its_first_token() -> None:
    sampler = _sampler(Constraint("regex", ""), _parameters({"min_tokens": 5}))
    token = sampler.sample(_row(0))

    assert token.token_id in _EOS
    assert token.is_last


def test_a_stop_token_before_min_tokens_does_not_empty_a_row() -> None:
    parameters = _parameters({"min_tokens": 5, "stop_token_ids": (97,)})

    assert 97 == _sampler(Constraint("regex", "ac"), parameters).sample(_row(0)).token_id


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_that_bans_all_that_is_allowed_is_an_error_of_its_request(
    temperature: float,
) -> None:
    parameters = _parameters({"logit_bias": {120: -100.0, 121: -100.0}, "temperature": temperature})
    sampler = _sampler(Constraint("regex", "a[xy]"), parameters)
    sampler.sample(_row(0))

    with pytest.raises(ConstraintError, match="output position 1: logit_bias bans all"):
        sampler.sample(_row(1))


def test_logprobs_are_those_of_the_untouched_row() -> None:
    row = _row(0)
    best = int(row.argmax())
    sampler = _sampler(
        Constraint("regex", "[xy]"), _parameters({"num_logprobs": 3, "temperature": 0.0})
    )
    before = row.copy()
    token = sampler.sample(row)

    assert np.array_equal(before, row)
    assert token.token_id in (120, 121)
    assert token.logprobs is not None
    assert raw_logprobs(row, token.token_id, 3) == token.logprobs
    assert best == token.logprobs.top_token_ids[0]
    total = math.log(float(np.exp(row.astype(np.float64)).sum()))
    assert float(row[token.token_id]) - total == pytest.approx(token.logprobs.logprob)


def test_every_token_of_a_row_can_be_chosen_with_its_probability() -> None:
    """Under a constraint the allowed tokens keep their proportions."""
    row = np.zeros(len(_VOCABULARY.tokens), np.float32)
    row[ord("x")] = math.log(3)
    constraint = Constraint("regex", "[xy]")
    tokens = [
        _sampler(constraint, _parameters({}, seed)).sample(row).token_id for seed in range(400)
    ]

    assert {120, 121} == set(tokens)
    assert 0.68 < tokens.count(120) / len(tokens) < 0.82
