"""Samplers of a model whose matrices have room for more tokens than its tokenizer knows."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model.acceptance import DraftToken
from slipstream.shared.model.config import load_config
from slipstream.shared.model.fake_model import write_fake_model
from slipstream.shared.model.tokenizer import Tokenizer
from slipstream.shared.worker.sampler_source import SamplerSource

_NUM_PADDING = 64
_NUM_TIMES = 50


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_model(tmp_path_factory.mktemp("padded") / "fake")


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 2.0, "top_p": 0.9, "top_k": 40},
        {"temperature": 1.0, "speculation_mode": "rejection"},
    ],
)
async def test_b94_what_pads_the_vocabulary_is_never_a_token(
    model_dir: Path, fields: dict[str, object]
) -> None:
    tokenizer = Tokenizer(model_dir)
    num_tokens = tokenizer.max_token_id + 1
    config = load_config(model_dir)
    config = msgspec.structs.replace(config, vocab_size=num_tokens + _NUM_PADDING)
    parameters = SamplingParameters(max_tokens=99, seed=7, num_logprobs=8, **fields)  # type: ignore[arg-type] # as named
    sampler = await SamplerSource(config, lambda: tokenizer).open(parameters, [1], [])
    random = np.random.default_rng(3)

    for _ in range(_NUM_TIMES):
        logits = random.normal(size=config.vocab_size).astype(np.float32)
        logits[num_tokens:] += 20.0  # nobody has trained them
        sampled = sampler.sample(logits, draft=DraftToken(num_tokens + 1))

        assert sampled.token_id < num_tokens
        assert sampled.logprobs is not None
        assert all(each < num_tokens for each in sampled.logprobs.top_token_ids)
        # Of the tokens that there are: padding has no part of it.
        known = logits[:num_tokens].astype(np.float64)
        expected = known[sampled.token_id] - np.log(np.exp(known).sum())
        assert sampled.logprobs.logprob == pytest.approx(expected, abs=1e-5)
