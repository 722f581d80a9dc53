"""What a draft learns from, and what speculation is measured with, are apart."""

from itertools import islice

from slipstream.shared.drafting.prompts import measured_runs, runs_of, training_prompts
from slipstream.shared.measure.prompt_sets import SETS, read_set

PROMPTS = list(islice(training_prompts(0), 15_000))


def test_no_prompt_that_is_measured_with_is_among_those_that_are_trained_with() -> None:
    measured = {prompt.messages[-1].content for name in SETS for prompt in read_set(name).prompts}

    assert set() == measured & set(PROMPTS)


def test_no_text_of_the_one_is_in_the_other() -> None:
    """Both take paragraphs of Python's documentation: not the same ones."""
    measured = measured_runs()

    assert [] == [prompt for prompt in PROMPTS if not measured.isdisjoint(runs_of(prompt))]


def test_a_text_that_is_measured_with_would_be_noticed() -> None:
    text = read_set("summarize").prompts[0].text

    assert not measured_runs().isdisjoint(runs_of(f"Something else.\n\n{text}"))


def test_prompts_are_many_and_of_several_kinds() -> None:
    kinds = {" ".join(prompt.split()[:2]) for prompt in PROMPTS}

    assert len(PROMPTS) == len(set(PROMPTS))
    assert len(kinds) > 40


def test_a_seed_gives_the_same_prompts() -> None:
    assert PROMPTS[:50] == list(islice(training_prompts(0), 50))
    assert PROMPTS[:50] != list(islice(training_prompts(1), 50))
