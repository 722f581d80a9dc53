"""From a target's name to the file of a draft: answers, training, what it reached. Needs torch."""

from dataclasses import dataclass
from pathlib import Path

import torch

from slipstream.shared.cores import num_cores
from slipstream.shared.drafting.answers import collect_answers
from slipstream.shared.drafting.target import Report, Target
from slipstream.shared.drafting.trained_file import DraftOrigin, TrainedDraft
from slipstream.shared.drafting.training import (
    Agreement,
    Trainer,
    frequent_tokens,
    split_answers,
)
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.formats import native_gap
from slipstream.shared.model.tensors import load_tensors
from slipstream.shared.model.tokenizer import Tokenizer

_NUM_IN_A_ROW = 4  # tokens of a proposal for which acceptance is told
_NUM_JUDGED = 200  # answers
_NUM_SEEN = 64  # answers that show what the blocks' inputs are like


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained, and how long."""

    num_layers: int
    num_blocks: int
    num_head_tokens: int
    num_answers: int
    seconds: float
    num_threads: int  # 0: one a core


def train_draft(
    spec: str, cache_dir: Path, recipe: Recipe, out: Path, *, report: Report
) -> Agreement:
    """Train a draft and write its file. Raises ModelError, ConfigurationError."""
    num_threads = recipe.num_threads or num_cores()
    # Int8 answers many prompts at once fastest; what it says is what int4 says.
    target = Target.open(spec, cache_dir, "int8", report=report)
    _check(target.config, recipe, out)
    tokenizer = target.tokenizer()
    directory = cache_dir / "answers" / f"{target.fingerprint}-int8"
    answers = collect_answers(target, directory, recipe.num_answers, num_threads, report=report)
    torch.set_num_threads(num_threads)
    torch.manual_seed(0)
    learned_from, held_out = split_answers(answers)
    head_token_ids = frequent_tokens(
        learned_from, recipe.num_head_tokens, _control_tokens(tokenizer, target.config)
    )
    trainer = Trainer(
        load_tensors(target.directory),
        target.config,
        head_token_ids,
        recipe.num_layers,
        recipe.num_blocks,
    )
    report(f"learning from {len(learned_from)} answers for {recipe.seconds / 60:.1f} minutes")
    trainer.train(learned_from, recipe.seconds, report=report)
    origin = DraftOrigin(
        model=target.config.name,
        fingerprint=target.fingerprint,
        tokenizer_fingerprint=tokenizer.fingerprint,
        num_layers=recipe.num_layers,
        num_blocks=recipe.num_blocks,
    )
    tensors = trainer.tensors(learned_from[:_NUM_SEEN])
    TrainedDraft(origin, tensors, head_token_ids).write(out)
    return trainer.agreement(held_out[:_NUM_JUDGED], _NUM_IN_A_ROW)


def _check(config: ModelConfig, recipe: Recipe, out: Path) -> None:
    if recipe.num_layers + recipe.num_blocks >= config.num_layers:
        raise ConfigurationError(
            f"--layers {recipe.num_layers} and --blocks {recipe.num_blocks} are no less than the "
            f"{config.num_layers} layers of {config.name}; take fewer"
        )
    if not out.parent.is_dir():
        raise ConfigurationError(f"--out {out}: there is no directory {out.parent}")
    gap = native_gap(config)
    if gap is not None:
        raise ConfigurationError(f"{config.name} can't have such a draft: {gap}")


def _control_tokens(tokenizer: Tokenizer, config: ModelConfig) -> list[int]:
    """Return the tokens that every draft has to know: those that end an answer, above all."""
    ids = (each for each in range(tokenizer.max_token_id + 1) if tokenizer.is_special(each))
    return sorted({*ids, *config.eos_token_ids})
