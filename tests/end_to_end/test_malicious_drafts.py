"""Whatever a draft worker proposes, requests say what they say without one, to the last digit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from . import client, conftest
from .drafter import drafting
from .malice import MANNERS, UNUSABLE, Known, Liar

pytestmark = [
    pytest.mark.nats,
    pytest.mark.model,
    pytest.mark.timeout(240),
    pytest.mark.usefixtures("packed_int8"),
]

Request = dict[str, Any]  # Any: JSON

_ARGUMENTS = ["--threads", "2", "--draft", "0"]
_INT8 = [*_ARGUMENTS, "--format", "int8"]
_ROOMY = ["--kv-memory", "128MiB"]
_BUDGET_S = 0.1  # whoever is to be late surely is, and else nobody
_LATE_S = 0.15
_NUM_DRAFTS = 6
_VARIABLES = {
    "SLIPSTREAM_DRAFT_PLACE": "draft",
    "SLIPSTREAM_DRAFT_BUDGET_MS": f"{_BUDGET_S * 1000:g}",
    "SLIPSTREAM_MAX_NUM_DRAFT_TOKENS": str(_NUM_DRAFTS),
}
# They push one another out: six answers share two blocks, and each needs two of its own.
_TIGHT = {
    **_VARIABLES,
    "SLIPSTREAM_KV_BLOCKS": "12",
    "SLIPSTREAM_NUM_GRANTED_BLOCKS": "2",
    "SLIPSTREAM_TOKEN_BUDGET": "16",
}
_BLOCK_SIZE = 32
_NUM_TOKENS = 48
_PROMPT = (
    "Ride behind me and rest a little while you can. The wind is strong today, the road is long, "
    "and the next village lies behind the hill. There we shall eat bread and cheese, and there we "
    "shall hear what the others have seen on their way, for they left before us, and they ride"
)
_SCHEMA = {
    "type": "object",
    "properties": {"bread": {"type": "boolean"}, "cheese": {"type": "boolean"}},
    "required": ["bread", "cheese"],
    "additionalProperties": False,
}
_KINDS: Mapping[str, Request] = {
    "greedy": {"temperature": 0, "logprobs": 2, "ignore_eos": True},
    "sampled": {
        "temperature": 1.1,
        "seed": 77,
        "n": 2,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.15,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {"100": -5},
        "logprobs": 1,
        "ignore_eos": True,
    },
    "constrained": {"temperature": 0.9, "seed": 5, "guided_regex": "[a-z ,]{300,900}\\."},
    # Ends by itself, and what is drafted behind the end must not matter.
    "json": {
        "temperature": 0.8,
        "seed": 3,
        "frequency_penalty": 0.5,
        "response_format": {"type": "json_schema", "json_schema": {"schema": _SCHEMA}},
    },
    "stopped": {"temperature": 0, "stop": [" wind", "ill", ","], "min_tokens": 20},
}
_MAX_NUM_ROUNDS = 12


def _requests(prompt_ids: Sequence[int]) -> list[Request]:
    # Verified whether they pay or not: lies surely don't.
    shared = {
        "prompt_token_ids": list(prompt_ids),
        "max_tokens": _NUM_TOKENS,
        "num_speculative_tokens": _NUM_DRAFTS,
    }
    return [{**shared, **kind} for kind in _KINDS.values()]


def _total(answers: Sequence[client.Answer], name: str) -> int:
    return sum(each["usage"].get(name, 0) for each in answers)


class Table:
    """Requests on a stack, what they say without drafts, and a draft worker that lies to them."""

    def __init__(self, asking: client.Client, nats_url: str, prompt_ids: Sequence[int]) -> None:
        self.requests = _requests(prompt_ids)
        self.plain: list[client.Answer] = []
        self._asking = asking
        self._nats_url = nats_url
        self._prompt_ids = prompt_ids

    async def ask_plainly(self) -> None:
        """Learn what is right; each kind must be worth drafting for."""
        salted = [{**each, "speculation": "off", "cache_salt": "off"} for each in self.requests]
        self.plain = await self._asking.gather(*salted)
        for answer in self.plain:
            assert "completion" == answer["type"], answer
            assert all(len(each["token_ids"]) > 10 for each in answer["choices"])

    async def check_same(self, manners: Sequence[str], seed: int, num_times: int) -> list[Any]:
        """
        Ask in rounds until a liar has shown each of its manners so many times.

        Return all answers, none of which may differ. Any: JSON
        """
        liar = Liar(self._known, manners, seed, _LATE_S)
        answers: list[client.Answer] = []
        async with drafting(self._nats_url, liar.answers):
            for _ in range(_MAX_NUM_ROUNDS):
                told = await self._asking.gather(*self.requests)
                answers += told
                for request, plain, each in zip(self.requests, self.plain, told, strict=True):
                    assert "completion" == each["type"], each
                    assert plain["choices"] == each["choices"], (request, liar.num_times)
                if all(liar.num_times[manner] >= num_times for manner in manners):
                    return answers
        raise AssertionError(f"in {_MAX_NUM_ROUNDS} rounds there were only {liar.num_times}")

    async def check_cache(self) -> None:
        """Go on from what was said: on the blocks that were left, and on none."""
        said = [[*prompt, *output] for prompt, output in self._known]
        requests = [
            {"prompt_token_ids": each, "max_tokens": 4, "temperature": 0, "logprobs": 2}
            for each in said
            # The last token has no KV yet.
            if (len(each) - 1) // _BLOCK_SIZE > len(self._prompt_ids) // _BLOCK_SIZE
        ]
        fresh = [{**each, "speculation": "off", "cache_salt": "none"} for each in requests]
        on_cached = await self._asking.gather(*requests)
        on_none = await self._asking.gather(*fresh)

        assert [each["choices"] for each in on_none] == [each["choices"] for each in on_cached]
        num_cached = [each["usage"].get("num_cached_tokens", 0) for each in on_cached]
        assert len(num_cached) >= len(_KINDS) - 1
        assert min(num_cached) > len(self._prompt_ids), "else nothing generated was read"

    @property
    def _known(self) -> Known:
        return [
            (self._prompt_ids, choice["token_ids"])
            for answer in self.plain
            for choice in answer["choices"]
        ]


@pytest.fixture(scope="session")
def prompt_ids(model_dir: Path) -> list[int]:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(_PROMPT).ids
    return ids


@pytest.mark.slow
async def test_no_lie_of_a_draft_worker_changes_an_answer_or_what_is_cached(
    start_stack: conftest.StartStack, prompt_ids: list[int]
) -> None:
    running = start_stack([*_INT8, *_ROOMY], _VARIABLES)
    async with client.connected(running.nats_url) as asking:
        table = Table(asking, running.nats_url, prompt_ids)
        await table.ask_plainly()
        answers = await table.check_same(list(MANNERS), seed=1, num_times=2)
        await table.check_cache()
        for manner in sorted(UNUSABLE):
            dropped = await table.check_same([manner], seed=1, num_times=1)
            assert 0 == _total(dropped, "num_drafted_tokens"), manner
        assert not (await asking.idle_audit()).get("problems")

    # What would make all of this say less than it seems to.
    drafted, tested, accepted = (
        _total(answers, f"num_{each}_tokens") for each in ("drafted", "tested", "accepted")
    )
    assert drafted > tested > accepted > 0
    assert 0 == running.stop()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("weight_format", ["int8", "int4"])
@pytest.mark.usefixtures("packed_int4")
async def test_no_kind_of_lie_alone_changes_an_answer(
    start_stack: conftest.StartStack, prompt_ids: list[int], weight_format: str
) -> None:
    running = start_stack([*_ARGUMENTS, "--format", weight_format, *_ROOMY], _VARIABLES)
    async with client.connected(running.nats_url) as asking:
        table = Table(asking, running.nats_url, prompt_ids)
        await table.ask_plainly()
        for manner in MANNERS:
            answers = await table.check_same([manner], seed=2, num_times=3)
            num_drafted = _total(answers, "num_drafted_tokens")
            assert manner not in UNUSABLE or num_drafted == 0, manner
            assert manner != "right" or _total(answers, "num_accepted_tokens") > num_drafted / 2
        await table.check_cache()
        assert not (await asking.idle_audit()).get("problems")
    assert 0 == running.stop()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [3, 4, 5])
async def test_no_lie_changes_an_answer_among_preemptions(
    start_stack: conftest.StartStack, prompt_ids: list[int], seed: int
) -> None:
    running = start_stack(_INT8, _TIGHT)
    async with client.connected(running.nats_url) as asking:
        table = Table(asking, running.nats_url, prompt_ids)
        await table.ask_plainly()
        answers = await table.check_same(list(MANNERS), seed=seed, num_times=5)
        assert not (await asking.idle_audit()).get("problems")

    assert _total(answers, "num_preemptions") > 0
    assert _total(answers, "num_accepted_tokens") > 0
    assert 0 == running.stop()
