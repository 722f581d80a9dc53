"""What the options of `slipstream bench speculate` ask for."""

import pytest

from slipstream.services.cli.speculate_bench_options import SpeculateBenchOptions
from slipstream.services.cli.speculate_bench_plan import OFF, ON, make_plan, waves
from slipstream.services.scheduler.validation import check_fields
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.prompt_sets import SETS
from slipstream.shared.messages.generate import GenerateRequest


def test_by_default_every_set_is_asked_greedily_and_not() -> None:
    plan = make_plan(SpeculateBenchOptions())

    assert list(SETS) == [each.name for each in plan.sets]
    assert ([1, 4, 8], [0.0, 0.7], ["ngram"]) == (plan.batches, plan.temperatures, plan.drafts)
    assert all(len(each.prompts) >= 30 for each in plan.sets)


def test_the_first_prompts_of_a_set_are_taken() -> None:
    plan = make_plan(SpeculateBenchOptions(sets="code,chat", prompts=2))

    ids = [[prompt.id for prompt in each.prompts] for each in plan.sets]
    assert [["code-01", "code-02"], ["chat-01", "chat-02"]] == ids


def test_prompts_ask_for_drafts_in_words_that_requests_may_use() -> None:
    for way in (ON, OFF):
        check_fields(GenerateRequest(prompt="x", speculation=way), 100, 100)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"drafts": "ngram,layers", "url": "nats://x"}, "of one kind"),
        ({"drafts": "model,layers", "draft_model": "x"}, "a run of its own"),
        ({"drafts": "guess"}, "--draft"),
    ],
)
def test_kinds_of_drafts_that_one_run_cannot_tell_apart_are_refused(
    options: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make_plan(SpeculateBenchOptions(**options))  # type: ignore[arg-type]


def test_each_kind_of_draft_has_a_stack_that_makes_it() -> None:
    options = SpeculateBenchOptions(drafts="ngram,layers", draft_model="x", draft_place="draft")
    stacks = {kind: options.stack(kind) for kind in make_plan(options).drafts}

    assert {"ngram": (1, None), "layers": (1, "x")} == {
        kind: (stack.draft, stack.draft_model) for kind, stack in stacks.items()
    }
    assert ["ngram", "layers"] == [stack.draft_kind for stack in stacks.values()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sets": "chat,poems"}, "--sets 'poems' is none of chat, copy_edit, code, summarize"),
        ({"drafts": "off"}, "--draft 'off' is none of ngram"),
        ({"batches": "1,none"}, "--batch is '1,none': write for example"),
        ({"batches": "0"}, "--batch is '0': every number is at least 1"),
        ({"temperatures": "0;1"}, "--temperature is '0;1': write for example 0,0.7"),
        ({"temperatures": "0,2.5"}, r"--temperature is '0,2.5': every number lies in \[0, 2\]"),
        ({"temperatures": "nan"}, r"--temperature is 'nan': every number lies in \[0, 2\]"),
    ],
)
def test_what_makes_no_sense_is_said(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_plan(SpeculateBenchOptions(**options))  # type: ignore[arg-type] # texts only


def test_waves_are_all_full() -> None:
    """The last one begins anew: a smaller batch would be another measurement."""
    assert [["a", "b"], ["c", "a"]] == list(waves("abc", 2))
    assert [["a"], ["b"], ["c"]] == list(waves("abc", 1))
    assert [["a", "b", "a", "b", "a"]] == list(waves("ab", 5))
