"""The prompts of `bench speculate`: enough of each kind, each once, unknown to calibration."""

from collections import Counter
from pathlib import Path

import pytest

from slipstream.shared.measure.prompt_sets import SETS, Prompt, read_set
from slipstream.shared.model.calibration import calibration_texts
from slipstream.shared.model.calibration_chats import CHATS
from slipstream.shared.model.tokenizer import Tokenizer

from .test_texts import runs_of_words

_MIN_NUM_PROMPTS = 30
_MAX_NUM_TOKENS, _NUM_OUTPUT_TOKENS = 2048, 128


def everything() -> list[Prompt]:
    return [prompt for name in SETS for prompt in read_set(name).prompts]


@pytest.mark.parametrize("name", SETS)
def test_a_set_has_enough_prompts_each_with_its_source(name: str) -> None:
    prompts = read_set(name).prompts

    assert len(prompts) >= _MIN_NUM_PROMPTS
    assert [f"{name}-{idx + 1:02}" for idx in range(len(prompts))] == [p.id for p in prompts]
    assert all(prompt.source for prompt in prompts)


def test_what_is_asked_has_not_been_answered() -> None:
    """A prompt ends with the user; earlier answers are turns of a conversation about it."""
    turns = {prompt.id: [message.role for message in prompt.messages] for prompt in everything()}
    with_answers = {each for each, roles in turns.items() if "assistant" in roles}

    assert {"user"} == {roles[-1] for roles in turns.values()}
    assert {"chat"} == {each.partition("-")[0] for each in with_answers}


def test_no_prompt_stands_there_twice_nor_a_part_of_one() -> None:
    counts = Counter(run for each in everything() for run in runs_of_words(each.text))
    texts = Counter(each.text for each in everything())

    assert [] == [run for run, count in counts.items() if count > 1]
    assert {1} == set(texts.values())


def test_no_prompt_is_one_that_the_weights_were_rounded_by() -> None:
    """Else the figures would be those of a fit, not of a forecast."""
    known = set[tuple[str, ...]]().union(*map(runs_of_words, calibration_texts()))
    questions = {question for question, _ in CHATS}
    assert len(known) > 1000

    assert [] == [each.id for each in everything() if runs_of_words(each.text) & known]
    assert set() == questions & {str(each.messages[-1].content) for each in everything()}


@pytest.mark.model
def test_a_prompt_and_its_answer_fit_into_the_default_models_context(model_dir: Path) -> None:
    tokenizer = Tokenizer(model_dir)
    lengths = {
        each.id: len(
            tokenizer.encode_chat(
                [{"role": m.role, "content": str(m.content)} for m in each.messages]
            )
        )
        for each in everything()
    }

    assert max(lengths.values()) + _NUM_OUTPUT_TOKENS <= _MAX_NUM_TOKENS, lengths
