"""
When a sequence ends, and which text is certain.

Whichever comes first of end-of-sequence, stop, the end of a constraint, and length.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.shared.messages.common import FinishReason
from slipstream.shared.messages.sampling import SamplingParameters


class Detokenizer(Protocol):
    """Text of tokens, a token at a time, in whole characters."""

    def push(self, token_id: int) -> str:
        """Return the text that has become certain."""

    def flush(self) -> str:
        """Return what is left at the end."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence ended, and on what."""

    finish_reason: FinishReason
    stop_reason: str | int | None = None


class StopChecker:
    """
    Walks the output token by token.

    Text is held back only while it is a prefix of some stop string; before `min_tokens` stop
    strings don't count, and a match must lie wholly in the text after them.
    """

    def __init__(
        self,
        parameters: SamplingParameters,
        eos_token_ids: Collection[int],
        max_num_tokens: int,
        detokenizer: Detokenizer,
    ) -> None:
        self._stop_ids = frozenset(parameters.stop_token_ids)
        self._eos_ids = frozenset(() if parameters.ignore_eos else eos_token_ids)
        self._stops = parameters.stop
        self._min_tokens = parameters.min_tokens
        self._max_tokens = min(parameters.max_tokens, max_num_tokens)
        self._detokenizer = detokenizer
        self._held = ""
        self.num_tokens = 0

    def push(self, token_id: int, *, is_last: bool = False) -> tuple[str, Ending | None]:
        """
        Return the text that may be sent after this token, and the ending if this is the last.

        `is_last` says that its constraint allows nothing behind it, whatever else is wished.
        """
        self.num_tokens += 1
        if self.num_tokens >= self._min_tokens and token_id in self._eos_ids:
            return self._finish(Ending("stop"))
        if self.num_tokens >= self._min_tokens and token_id in self._stop_ids:
            return self._finish(Ending("stop", token_id))
        self._held += self._detokenizer.push(token_id)
        match = _first_match(self._held, self._stops) if self._is_checked else None
        if match is not None:
            return self._cut(match)
        if is_last:
            return self._finish(Ending("stop"))
        if self.num_tokens >= self._max_tokens:
            return self._finish(Ending("length"))
        num_held = _num_held(self._held, self._stops) if self._is_checked else 0
        return self._take(len(self._held) - num_held), None

    @property
    def _is_checked(self) -> bool:
        """The text of the latest token may be part of a stop string."""
        return self.num_tokens > self._min_tokens or self._min_tokens <= 1

    def _finish(self, ending: Ending) -> tuple[str, Ending]:
        """End without a stop string, unless the very last characters complete one."""
        self._held += self._detokenizer.flush()
        match = _first_match(self._held, self._stops)
        if match is not None and self._is_checked and ending.stop_reason is None:
            return self._cut(match)
        return self._take(len(self._held)), ending

    def _cut(self, match: tuple[int, str]) -> tuple[str, Ending]:
        start, stop = match
        text = self._held[:start]
        self._held = ""
        return text, Ending("stop", stop)

    def _take(self, num_characters: int) -> str:
        text, self._held = self._held[:num_characters], self._held[num_characters:]
        return text


def _first_match(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Return the earliest occurrence of a stop string; of several there the longest."""
    found = [(text.find(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return None
    start, _, stop = min(found)
    return start, stop


def _num_held(text: str, stops: Sequence[str]) -> int:
    """Return how long a suffix of the text is a proper prefix of some stop string."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest
