"""A draft of a target's layers: trained in seconds, packed beside the target's weights, opened."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream.kernels.cpu.loader import available_levels
from slipstream.shared.config import DraftConfig
from slipstream.shared.drafting import answers as answers_module
from slipstream.shared.drafting import opening
from slipstream.shared.drafting.answers import Answer, collect_answers, read_answers
from slipstream.shared.drafting.drafter import Drafter, Wanted
from slipstream.shared.drafting.layered import embedding_of_head
from slipstream.shared.drafting.opening import open_drafter
from slipstream.shared.drafting.recipe import Recipe, train_draft
from slipstream.shared.drafting.target import Target
from slipstream.shared.drafting.torch_block import Rotary, block_tensors, run_block
from slipstream.shared.drafting.trained_file import TrainedDraft
from slipstream.shared.drafting.training import Trainer, frequent_tokens, split_answers
from slipstream.shared.errors import ConfigurationError, ModelError
from slipstream.shared.model import calibration
from slipstream.shared.model.tensors import load_tensors
from slipstream.shared.worker.model_source import open_model

from .tiny_target import write_target

pytestmark = [
    pytest.mark.skipif(not available_levels(), reason="the native kernels were not built"),
    pytest.mark.timeout(120),
]

RECIPE = Recipe(
    num_layers=2,
    num_blocks=1,
    num_head_tokens=200,
    num_answers=64,
    seconds=1.0,
    num_threads=1,
)


@dataclasses.dataclass(frozen=True)
class Made:
    """A target and a draft of it."""

    directory: Path
    cache_dir: Path
    file: Path

    def config(self, **values: object) -> DraftConfig:
        fields = {
            "model": str(self.directory),
            "draft_kind": "layers",
            "draft_model": str(self.file),
            "weight_format": "float32",
        }
        return DraftConfig(cache_dir=self.cache_dir, **(fields | values))  # type: ignore[arg-type]


def ignore(_line: str) -> None:
    """Hear nothing."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("drafting")
    found = Made(write_target(root / "tiny"), root / "cache", root / "draft.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        # What a model of chance is calibrated with hardly matters.
        patch.setattr(calibration, "calibration_texts", lambda: ["A short text."])
        patch.setattr(answers_module, "_NUM_OF_SHARD", 32)
        train_draft(str(found.directory), found.cache_dir, RECIPE, found.file, report=ignore)
    return found


@pytest.fixture(scope="module")
def answers(made: Made) -> list[Answer]:
    paths = sorted((made.cache_dir / "answers").glob("*/*.safetensors"))
    return [answer for path in paths for answer in read_answers(path)]


def drafts_of(drafter: Drafter, prompt: list[int], num_tokens: int) -> list[int]:
    followed = drafter.follow(len(prompt), None)
    drafter.extend(followed, prompt)
    while drafter.catch_up([followed]):
        pass
    (proposal,) = drafter.draft([Wanted(followed, num_tokens)])
    return list(proposal.token_ids)


def said_by_torch(made: Made, prompt: list[int], num_tokens: int) -> list[int]:
    """Return what the draft's file says, in plain torch."""
    trained = TrainedDraft.read(made.file)
    tensors = load_tensors(made.directory)
    config = Target.open(str(made.directory), made.cache_dir, "float32", report=ignore).config
    blocks = [block_tensors(tensors, idx) for idx in range(trained.origin.num_layers)]
    blocks.append(
        {
            name.removeprefix("blocks.0."): torch.tensor(values)
            for name, values in trained.tensors.items()
            if name.startswith("blocks.0.")
        }
    )
    head = tensors["model.embed_tokens.weight"][torch.tensor(trained.head_token_ids).long()]
    tokens = list(prompt)
    for _ in range(num_tokens):
        hidden = tensors["model.embed_tokens.weight"][torch.tensor([tokens])]
        for block in blocks:
            hidden = run_block(hidden, block, Rotary.of(config, len(tokens)), config)
        norm = torch.tensor(trained.tensors["final_norm"])
        x = torch.nn.functional.rms_norm(hidden[0, -1], norm.shape, norm, config.rms_norm_eps)
        tokens.append(int(trained.head_token_ids[(head @ x).argmax()]))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("weight_format", ["float32", "bf16", "int8"])
def test_the_kernels_say_what_torch_says(made: Made, weight_format: str) -> None:
    """Of formats that round, most: a head of weights of chance is rarely sure."""
    config = made.config(weight_format=weight_format)
    drafter = open_drafter(open_model(config), config)
    prompts = [list(f"A prompt of number {number}.".encode()) for number in range(24)]
    pairs = [(drafts_of(drafter, p, 1), said_by_torch(made, p, 1)) for p in prompts]
    drafter.close()
    num_same = sum(ours == theirs for ours, theirs in pairs)

    assert num_same >= (22 if weight_format == "float32" else 16), pairs


@pytest.mark.slow
def test_learning_makes_a_draft_agree(made: Made, answers: list[Answer]) -> None:
    target = Target.open(str(made.directory), made.cache_dir, "int8", report=ignore)
    learned_from, held_out = split_answers(answers)
    head = frequent_tokens(learned_from, 200, [257])
    torch.manual_seed(0)
    trainer = Trainer(load_tensors(made.directory), target.config, head, 2, 1)
    before = trainer.agreement(learned_from, 2).rates
    trainer.train(learned_from, 6.0, report=ignore)
    after = trainer.agreement(learned_from, 2).rates

    assert len(held_out) == 2
    assert after[0] > before[0] + 0.1


def test_answers_are_made_once_and_the_same(made: Made, answers: list[Answer]) -> None:
    target = Target.open(str(made.directory), made.cache_dir, "int8", report=ignore)
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers_module, "_NUM_OF_SHARD", 32)
        directory = next((made.cache_dir / "answers").iterdir())
        again = collect_answers(target, directory, 64, 1, report=lines.append)
        afresh = collect_answers(target, made.cache_dir / "afresh", 32, 1, report=ignore)

    assert [] == lines
    assert [each.token_ids.tolist() for each in answers[: len(again)]] == [
        each.token_ids.tolist() for each in again
    ]
    assert [each.token_ids.tolist() for each in afresh] == [
        each.token_ids.tolist() for each in again[: len(afresh)]
    ]


def test_an_answer_knows_what_the_target_thought(answers: list[Answer]) -> None:
    for each in answers:
        num_answered = len(each.token_ids) - each.num_prompt_tokens

        assert (num_answered, answers_module.NUM_TOP) == each.top_token_ids.shape
        assert (each.top_logprobs[:, 0] >= each.top_logprobs[:, -1]).all()
    greedy = answers[0]
    assert (greedy.top_token_ids[:, 0] == greedy.token_ids[greedy.num_prompt_tokens :]).all()


def test_the_head_knows_control_tokens_and_the_frequent_ones(answers: list[Answer]) -> None:
    head = frequent_tokens(answers, 40, [256, 257])
    likely = np.bincount(np.concatenate([each.top_token_ids[:, 0] for each in answers]))

    assert {256, 257, int(likely.argmax())} <= set(head.tolist())
    assert (40, True) == (len(head), bool((np.diff(head) > 0).all()))


def test_a_draft_of_another_target_is_refused(made: Made, tmp_path: Path) -> None:
    other = write_target(tmp_path / "other", seed=1)
    config = made.config(model=str(other))
    with pytest.raises(ConfigurationError, match=r"was made from tiny \(\w+\), not from other"):
        open_drafter(open_model(config), config)


def test_a_missing_draft_says_how_to_make_one(made: Made) -> None:
    config = made.config(draft_model="")
    with pytest.raises(ConfigurationError, match="slipstream draft train --model tiny"):
        open_drafter(open_model(config), config)


@pytest.mark.parametrize("change", ["version", "head"])
def test_a_file_that_is_no_draft_is_refused(made: Made, tmp_path: Path, change: str) -> None:
    trained = TrainedDraft.read(made.file)
    if change == "version":
        origin = type(trained.origin)(
            **{
                **{
                    name: getattr(trained.origin, name) for name in trained.origin.__struct_fields__
                },
                "version": 99,
            }
        )
        dataclasses.replace(trained, origin=origin).write(tmp_path / "x.safetensors")
        path, said = tmp_path / "x.safetensors", "version 99"
    else:
        path, said = made.directory / "model.safetensors", "no trained draft"
    with pytest.raises(ModelError, match=said):
        TrainedDraft.read(path)


def test_a_draft_model_of_other_tokens_is_refused_with_both_names(
    made: Made, tmp_path: Path
) -> None:
    other = write_target(tmp_path / "other")
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace("<|endoftext|>", "<|another|>"))
    config = made.config(draft_kind="model", draft_model=str(other))
    with pytest.raises(ConfigurationError, match=r"other \(tokenizer \w+\).* tiny \(tokenizer \w+"):
        open_drafter(open_model(config), config)


def test_the_target_itself_is_accepted_as_a_draft(made: Made) -> None:
    config = made.config(draft_kind="model", draft_model=str(made.directory))
    target = open_model(dataclasses.replace(config, weight_format="auto"))
    drafter = open_drafter(target, config)
    runner = Target.open(str(made.directory), made.cache_dir, report=ignore).runner(16, 1)
    prompt = list(b"Who are you?")
    tokens = list(prompt)
    for _ in range(6):
        rows = answers_module.SequenceRows(tokens, 0, len(tokens), range(1, 8), 1)
        tokens.append(int(runner.forward([rows])[0].argmax()))
    found = drafts_of(drafter, prompt, 6)
    drafter.close()
    runner.close()

    assert tokens[len(prompt) :] == found


def test_too_little_memory_names_the_option(made: Made) -> None:
    config = made.config(draft_memory_mib=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "MIB", 1024)
        with pytest.raises(ConfigurationError, match="--draft-memory-mib"):
            open_drafter(open_model(config), config)


@pytest.mark.parametrize("weight_format", ["float32", "bf16", "int8"])
def test_an_embedding_comes_out_of_the_head_that_it_is(made: Made, weight_format: str) -> None:
    target = Target.open(str(made.directory), made.cache_dir, weight_format, report=ignore)  # type: ignore[arg-type]
    found = embedding_of_head(target.packed)
    if found.dtype == np.uint16:
        found = (found.astype(np.uint32) << 16).view(np.float32)
    expected = load_tensors(made.directory)["model.embed_tokens.weight"].numpy()

    assert np.abs(found[: len(expected)] - expected).max() < 0.05


def test_layers_that_are_no_fewer_are_refused(made: Made, tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, num_layers=3)
    with pytest.raises(ConfigurationError, match="--layers 3 and --blocks 1 are no less"):
        train_draft(
            str(made.directory), made.cache_dir, recipe, tmp_path / "x", report=lambda _line: None
        )
