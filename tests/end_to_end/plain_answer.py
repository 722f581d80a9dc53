"""
What an answer must be, worked out from its own tokens in the plainest way.

The logits are those of transformers behind the tokens that were said, and each token is chosen
anew: from one that differs on, either would be right only at a near tie.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.plain_sampler import choose

from . import client, oracle
from .features import Fields
from .plain_language import EMPTY, Language, TokenMasks

END_IDS = (2,)  # end-of-sequence

# Of logits and logprobs: float32 on both sides, sums in another order. They lie 1e-4 apart, but
# behind few tokens, where the model's activations are huge, transformers alone lies 1e-3 off.
ROUNDING = 2e-3


@dataclass(frozen=True)
class Said:
    """One choice of an answer, however it came."""

    token_ids: list[int]
    text: str
    finish_reason: str
    stop_reason: str | int | None
    logprobs: list[Any] | None  # Any: [token, logprob, top ids, top logprobs], as JSON has them
    seed: int
    prompt: client.Answer | None


class Ending(NamedTuple):
    """How an answer ends, and with which text."""

    finish_reason: str
    stop_reason: str | int | None
    text: str


def said_in(answer: client.Answer) -> list[Said]:
    """Return the choices of a plain answer."""
    assert "completion" == answer["type"], answer
    return [_said(choice, {**answer, **choice}, choice) for choice in answer["choices"]]


def said_in_stream(stream: client.Stream, num_choices: int) -> list[Said]:
    """Return the choices of a stream, put together from their frames."""
    choices = [stream.choice(number) for number in range(num_choices)]
    for choice in choices:
        assert "finished" == choice.ending["type"], choice.ending
        assert choice.ending["num_tokens"] == len(choice.token_ids)
        assert choice.ending["text_length"] == len(choice.text)
    return [
        _said(
            {"token_ids": each.token_ids, "text": each.text, "logprobs": each.logprobs},
            each.ending,
            each.ending,
        )
        for each in choices
    ]


def _said(said: client.Answer, whole: client.Answer, ending: client.Answer) -> Said:
    return Said(
        token_ids=said["token_ids"],
        text=said["text"],
        finish_reason=ending["finish_reason"],
        stop_reason=ending.get("stop_reason"),
        logprobs=said.get("logprobs"),
        seed=whole["seed"],
        prompt=whole.get("prompt"),
    )


class Judge:
    """Holds an answer against what it must be."""

    def __init__(self, transformers: oracle.Oracle) -> None:
        self._transformers = transformers
        self._masks = TokenMasks(transformers.token_bytes(), END_IDS)

    def check(
        self,
        fields: Fields,
        language: Language | None,
        prompt_ids: Sequence[int],
        said: Said,
        rows: oracle.Rows,
    ) -> int:
        """Check a choice; `rows` came before its tokens. Return how many near ties it decided."""
        num_ties = 0
        for position, (token_id, row) in enumerate(zip(said.token_ids, rows, strict=True)):
            output = said.token_ids[:position]
            allowed = None if language is None else self._masks.allowed(language)
            what = (fields, said.seed, prompt_ids, output, END_IDS, allowed)
            expected = choose(row, *what)
            if token_id != expected:
                num_ties += 1
                assert token_id in _nearly_chosen(row, token_id, expected, what), (
                    f"output position {position}: token {token_id}, not {expected}, behind {output}"
                )
            if language is not None:
                language = self._masks.after(language, token_id)
            ending = self._ending(fields, said.token_ids[: position + 1], language)
            assert (position == len(said.token_ids) - 1) == (ending is not None), (
                f"output position {position} of {len(said.token_ids)}: {ending}"
            )
        assert ending == (said.finish_reason, said.stop_reason, said.text)
        self._check_logprobs(fields, said, rows)
        return num_ties

    def check_prompt(
        self, fields: Fields, prompt_ids: list[int], said: Said, rows: oracle.Rows
    ) -> None:
        """Check what is said of the prompt; `rows` come behind its tokens."""
        num_top = fields.get("prompt_logprobs", num_logprobs(fields) if "echo" in fields else None)
        if "echo" not in fields and num_top is None:
            assert said.prompt is None
            return
        assert said.prompt is not None
        text = self._decode(fields, prompt_ids) if "echo" in fields else ""
        assert (prompt_ids, text) == (said.prompt["token_ids"], said.prompt.get("text", ""))
        if num_top is None:
            assert "logprobs" not in said.prompt
            return
        first, *entries = said.prompt["logprobs"]
        assert first is None
        _check_entries(entries, prompt_ids[1:], rows[:-1], num_top)

    def _check_logprobs(self, fields: Fields, said: Said, rows: oracle.Rows) -> None:
        num_top = num_logprobs(fields)
        if num_top is None:
            assert said.logprobs is None
            return
        assert said.logprobs is not None
        _check_entries(said.logprobs, said.token_ids, rows, num_top)

    def _ending(
        self, fields: Fields, token_ids: list[int], language: Language | None
    ) -> Ending | None:
        """Return how the answer ends with its latest token, or None if it goes on."""
        latest, is_late = token_ids[-1], len(token_ids) >= fields.get("min_tokens", 0)
        before = self._decode(fields, token_ids[:-1])
        if is_late and latest in END_IDS and not fields.get("ignore_eos", False):
            return Ending("stop", None, before)
        if is_late and latest in fields.get("stop_token_ids", ()):
            return Ending("stop", latest, before)
        text = self._decode(fields, token_ids)
        stops = [fields["stop"]] if isinstance(fields.get("stop"), str) else fields.get("stop", [])
        start = self._start_of_stops(fields, token_ids)
        found = [(text.find(stop, start), -len(stop), stop) for stop in stops]
        found = [each for each in found if each[0] >= 0]
        if found:
            at, _, stop = min(found)
            return Ending("stop", stop, text[:at])
        if language is EMPTY:
            return Ending("stop", None, text)
        return Ending("length", None, text) if len(token_ids) == fields["max_tokens"] else None

    def _start_of_stops(self, fields: Fields, token_ids: Sequence[int]) -> int:
        """Return where stop strings begin to count: behind what is complete at `min_tokens`."""
        min_tokens = fields.get("min_tokens", 0)
        early = token_ids[:min_tokens] if min_tokens > 1 else []
        return len(self._decode(fields, early).rstrip("\N{REPLACEMENT CHARACTER}"))

    def _decode(self, fields: Fields, token_ids: Sequence[int]) -> str:
        skip_special = fields.get("skip_special_tokens", True)
        return self._transformers.decode(token_ids, skip_special=skip_special)


def num_logprobs(fields: Fields) -> int | None:
    """Return how many of the best are told beside each token; None for no logprobs at all."""
    asked = fields.get("logprobs")
    return fields.get("top_logprobs", 0) if asked is True else asked


def _nearly_chosen(
    row: oracle.Rows, token_id: int, expected: int, what: tuple[Any, ...]
) -> list[int]:  # Any: what `choose` takes
    """Return what is chosen when roundings fall for one token and against another."""
    nudged = row.copy()
    nudged[token_id] += ROUNDING
    nudged[expected] -= ROUNDING
    fields, *others = what
    shares = [fields.get("top_p", 1.0) * (1 + sign * ROUNDING) for sign in (-1, 0, 1)]
    return [choose(nudged, {**fields, "top_p": share}, *others) for share in shares]


def _check_entries(
    entries: Sequence[Any], token_ids: Sequence[int], rows: oracle.Rows, num_top: int
) -> None:  # Any: as in `Said`
    """Check logprobs: raw ones, whatever the sampler does, of the token and of the best."""
    assert len(token_ids) == len(entries)
    for (token_id, logprob, top_ids, top_logprobs), expected_id, row in zip(
        entries, token_ids, rows, strict=True
    ):
        wide = row.astype(np.float64)
        expected = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
        assert expected_id == token_id
        assert expected[token_id] == pytest.approx(logprob, abs=ROUNDING)
        assert num_top == len(set(top_ids)) == len(top_ids)
        assert expected[top_ids] == pytest.approx(top_logprobs, abs=ROUNDING)
        best = np.sort(expected)[::-1][:num_top]
        assert best == pytest.approx(top_logprobs, abs=ROUNDING)
