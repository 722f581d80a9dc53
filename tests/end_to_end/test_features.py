"""
Every pair of features in one request, against the plainest sampler on transformers' logits.

All requests are sent at once. Each is then asked for again as it could be had otherwise: its last
choice alone, streamed if it wasn't, with drafts if it had none.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import pytest

from . import client, oracle
from .covering import Row, combinations, covering_rows
from .features import FEATURES, LANGUAGES, MEETINGS, Fields, fields_of
from .plain_answer import END_IDS, Judge, Said, said_in, said_in_stream

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(600)]

_TIMEOUT_S = 300.0
_TOGETHER = 16  # outputs that go through transformers at once
_MAX_SHARE_OF_TIES = 0.01
_WAYS_TO_END = {
    *("length", "end", "stop string", "stop token"),
    *("end of regex", "end of choice", "end of json"),
}


async def _ask(asking: client.Client, fields: Fields) -> tuple[list[Said], int]:
    """Return the choices of an answer, and how many draft tokens were accepted in it."""
    if not fields.get("stream", False):
        answer = await asking.ask(fields, timeout_s=_TIMEOUT_S)
        return said_in(answer), answer["usage"].get("num_accepted_tokens", 0)
    stream = await asking.stream(fields, timeout_s=_TIMEOUT_S)
    said = said_in_stream(stream, fields.get("n", 1))
    return said, sum(each["usage"].get("num_accepted_tokens", 0) for each in stream.endings)


async def _ask_all(
    asking: client.Client, requests: Sequence[Fields]
) -> tuple[list[list[Said]], int]:
    answers = await asyncio.gather(*(_ask(asking, fields) for fields in requests))
    return [said for said, _ in answers], sum(num_accepted for _, num_accepted in answers)


def _alone(fields: Fields, last: Said) -> Fields:
    """Return a request for one choice of another, to be had in another way."""
    other = {"off": "ngram", "ngram": "off"}[fields["speculation"]]
    is_streamed = not fields.get("stream", False)
    changes = {"seed": last.seed, "n": 1, "stream": is_streamed, "speculation": other}
    return {**fields, **changes}


def _check_seeds(fields: Fields, said: Sequence[Said]) -> None:
    seeds = [each.seed for each in said]
    assert fields.get("seed", seeds[0]) == seeds[0]
    assert fields.get("n", 1) == len(said) == len(set(seeds))


def _judge(
    transformers: oracle.Oracle, rows: Sequence[Row], answers: Sequence[Sequence[Said]]
) -> int:
    """Check all choices, those of one prompt together; return the number of near ties."""
    judge, num_ties = Judge(transformers), 0
    by_prompt: dict[str, list[tuple[Row, Said]]] = defaultdict(list)
    for row, choices in zip(rows, answers, strict=True):
        _check_seeds(fields_of(row), choices)
        by_prompt[row["prompt"]] += [(row, said) for said in choices]
    for prompt, those in by_prompt.items():
        prompt_ids = transformers.prompt_ids(FEATURES["prompt"][prompt])
        for start in range(0, len(those), _TOGETHER):
            some = those[start : start + _TOGETHER]
            outputs = [said.token_ids for _, said in some]
            of_prompt, of_outputs = transformers.rows(prompt_ids, outputs)
            for (row, said), logits in zip(some, of_outputs, strict=True):
                fields, language = fields_of(row), LANGUAGES[row["grammar"]]
                try:
                    judge.check_prompt(fields, prompt_ids, said, of_prompt)
                    num_ties += judge.check(fields, language, prompt_ids, said, logits)
                except AssertionError as error:
                    error.add_note(f"{row}\n{said}")
                    raise
    return num_ties


def _ways_to_end(answers: Sequence[Sequence[Said]], rows: Sequence[Row]) -> set[str]:
    """Return what ended the choices."""
    ways = set()
    for each, row in [
        (each, row) for said, row in zip(answers, rows, strict=True) for each in said
    ]:
        if each.finish_reason == "length":
            ways.add("length")
        elif each.stop_reason is not None:
            ways.add("stop string" if isinstance(each.stop_reason, str) else "stop token")
        else:
            ways.add("end" if each.token_ids[-1] in END_IDS else f"end of {row['grammar']}")
    return ways


async def _check_rows(
    asking: client.Client, transformers: oracle.Oracle, rows: Sequence[Row]
) -> None:
    requests = [fields_of(row) for row in rows]
    answers, num_accepted = await _ask_all(asking, requests)
    lasts = [said[-1] for said in answers]
    again, num_accepted_again = await _ask_all(
        asking, [_alone(fields, last) for fields, last in zip(requests, lasts, strict=True)]
    )
    num_ties = await asyncio.to_thread(_judge, transformers, rows, answers)

    for row, last, alone in zip(rows, lasts, again, strict=True):
        assert [last] == alone, row
    num_tokens = sum(len(each.token_ids) for said in answers for each in said)
    assert num_ties < _MAX_SHARE_OF_TIES * num_tokens
    # What would make all of this say less than it seems to.
    assert num_accepted + num_accepted_again > 0, "no draft was ever accepted"
    assert _WAYS_TO_END == _ways_to_end(answers, rows)


def _rows(strength: int, num_times: int) -> list[Row]:
    """Return rows with all combinations, looked for there and not in how they were made."""
    values = {feature: list(named) for feature, named in FEATURES.items()}
    rows = covering_rows(values, strength, num_times, MEETINGS)
    for combination in combinations(values, strength):
        found = sum(dict(combination).items() <= row.items() for row in rows)
        assert found >= num_times, combination
    return rows


@pytest.mark.slow
async def test_features_work_together_in_pairs(
    real_client: client.Client, transformers_oracle: oracle.Oracle
) -> None:
    await _check_rows(real_client, transformers_oracle, _rows(2, num_times=2))


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_features_work_together_in_threes(
    real_client: client.Client, transformers_oracle: oracle.Oracle
) -> None:
    await _check_rows(real_client, transformers_oracle, _rows(3, num_times=1))
