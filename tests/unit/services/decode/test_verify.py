"""In exact mode verification gives the tokens of plain decoding, whatever the draft says."""

import numpy as np
import pytest

from slipstream.services.decode.verify import verify
from slipstream.shared.messages.sampling import SamplingParameters, SpeculationMode
from slipstream.shared.model.row_passes import Logits, row_passes
from slipstream.shared.model.sampling import SampledToken, Sampler

_VOCAB_SIZE = 40
_PROMPT = [1, 2, 3]


def _logits_after(token_ids: list[int]) -> Logits:
    """Stand in for a model: a row is a function of the tokens before it."""
    generator = np.random.default_rng(token_ids)
    return generator.normal(0, 2, _VOCAB_SIZE).astype(np.float32)


def _decode_plainly(parameters: SamplingParameters, num_tokens: int) -> list[int]:
    sampler = Sampler(parameters, _PROMPT)
    output: list[int] = []
    while len(output) < num_tokens:
        output.append(sampler.sample(_logits_after([*_PROMPT, *output])).token_id)
    return output


def _verify(parameters: SamplingParameters, draft: list[int]) -> list[int]:
    return [t.token_id for t in _verify_with(Sampler(parameters, _PROMPT), draft)]


def _verify_with(sampler: Sampler, draft: list[int]) -> list[SampledToken]:
    rows = np.stack([_logits_after([*_PROMPT, *draft[:i]]) for i in range(len(draft) + 1)])
    return verify(sampler, rows, row_passes().peaks(rows), draft)


_PARAMETERS = [
    SamplingParameters(seed=1, temperature=0.0),
    SamplingParameters(seed=1, temperature=0.0, speculation_mode="rejection"),
    SamplingParameters(seed=2),
    SamplingParameters(seed=3, temperature=1.5, top_k=8, top_p=0.9, min_p=0.01),
    SamplingParameters(
        seed=4, repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=0.7, min_tokens=3
    ),
]


@pytest.mark.parametrize("parameters", _PARAMETERS)
@pytest.mark.parametrize("num_right", [0, 1, 3, 4])
def test_tokens_are_kept_up_to_the_first_disagreement(
    parameters: SamplingParameters, num_right: int
) -> None:
    """Four drafts of which the first few are right give these and the target's own next token."""
    plain = _decode_plainly(parameters, 5)
    draft = [*plain[:num_right], *((token_id + 1) % _VOCAB_SIZE for token_id in plain[num_right:4])]

    assert plain[: num_right + 1] == _verify(parameters, draft)


@pytest.mark.parametrize("mode", ["exact", "rejection"])
def test_an_empty_draft_is_plain_decoding(mode: SpeculationMode) -> None:
    plain = _decode_plainly(SamplingParameters(seed=2), 1)

    assert plain == _verify(SamplingParameters(seed=2, speculation_mode=mode), [])


def test_the_sampler_stands_after_the_last_token_kept() -> None:
    parameters = SamplingParameters(seed=2)
    plain = _decode_plainly(parameters, 3)
    sampler = Sampler(parameters, _PROMPT)
    draft = [plain[0], (plain[1] + 1) % _VOCAB_SIZE]
    _verify_with(sampler, draft)

    assert 2 == sampler.num_output_tokens
    assert plain[2] == sampler.sample(_logits_after([*_PROMPT, *plain[:2]])).token_id
