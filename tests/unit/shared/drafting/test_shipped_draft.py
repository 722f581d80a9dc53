"""The draft that comes with Slipstream is of the default model, small, and often right."""

from pathlib import Path

import pytest

from slipstream.kernels.cpu.loader import available_levels
from slipstream.shared.config import DraftConfig
from slipstream.shared.drafting.drafter import Wanted
from slipstream.shared.drafting.opening import SHIPPED, find_trained, open_drafter
from slipstream.shared.drafting.target import Target
from slipstream.shared.messages.draft import DraftSampling
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.model.sampling import Sampler
from slipstream.shared.model.store import default_cache_dir
from slipstream.shared.model.tokenizer import Tokenizer
from slipstream.shared.worker.model_source import open_model

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not available_levels(), reason="the native kernels were not built"),
    pytest.mark.timeout(120),
]

QUESTIONS = ("How do plants drink water?", "Describe a walk along a river in spring.")
NUM_TOKENS = 64


@pytest.fixture
def config(model_dir: Path) -> DraftConfig:
    return DraftConfig(
        cache_dir=default_cache_dir(), draft_kind="layers", weight_format="int8", kv_format="int8"
    )


def ignore(_line: str) -> None:
    """Hear nothing."""


def test_it_is_small_and_knows_how_answers_end(config: DraftConfig, model_dir: Path) -> None:
    target = open_model(config)
    trained = find_trained(target, "")

    assert (SHIPPED / f"{config.model}.safetensors").stat().st_size < 20e6
    assert set(target.config.eos_token_ids) <= set(trained.head_token_ids.tolist())
    assert Tokenizer(model_dir).fingerprint == trained.origin.tokenizer_fingerprint


@pytest.mark.usefixtures("packed_int8")
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_it_often_says_what_the_target_says(
    config: DraftConfig, model_dir: Path, temperature: float
) -> None:
    target = Target.open(str(model_dir), config.cache_dir, "int8", report=ignore)
    drafter, runner = open_drafter(open_model(config), config), target.runner(16, 2)
    tokenizer = Tokenizer(model_dir)
    num_right = 0
    for seed, question in enumerate(QUESTIONS):
        prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
        parameters = SamplingParameters(seed=seed, temperature=temperature, max_tokens=NUM_TOKENS)
        sampler, tokens = Sampler(parameters, prompt), list(prompt)
        followed = drafter.follow(len(prompt), DraftSampling(seed, temperature))
        num_computed = 0
        for _ in range(NUM_TOKENS):
            drafter.extend(followed, tokens[followed.num_tokens :])
            drafter.catch_up([followed])
            (proposal,) = drafter.draft([Wanted(followed, 1)])
            rows = len(tokens) - num_computed
            table = range(1, 16)
            (row,) = runner.forward([SequenceRows(tokens, num_computed, rows, table, 1)])
            num_computed = len(tokens)
            tokens.append(sampler.sample(row).token_id)
            num_right += list(proposal.token_ids) == tokens[-1:]
    drafter.close()
    runner.close()

    # By chance it would be one of thousands.
    assert num_right > 0.2 * NUM_TOKENS * len(QUESTIONS), num_right
