"""How much of prompts a worker is given ahead of what it computes. Pure."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from slipstream.shared.ids import RequestId

# Two steps of a worker at its default budget: one that runs, one that is ready.
WINDOW_TOKENS = 1024
# A prompt of up to this part of longer ones that are before it passes them: when it is given out,
# inside the worker, and in what is told of its wait.
SHORT_PART = 4


class _Given(NamedTuple):
    num_tokens: int
    rank: int
    is_passing: bool


@dataclass
class PromptWindow:
    """
    The prompts that a worker was given and has not computed.

    Just enough that it never waits for the next one: whatever is given out is ordered no more, and
    what comes later can't pass it. What workers put first anyway isn't kept waiting: those of a
    lower rank don't count, and prompts that are much shorter than what is given out have as much
    room of their own.
    """

    max_num_tokens: int
    _given: dict[RequestId, _Given] = field(default_factory=dict)
    _num_tokens: Counter[int] = field(default_factory=Counter)  # by rank; those that pass apart
    _num_passing_tokens: int = 0

    def __len__(self) -> int:
        return len(self._given)

    @property
    def num_tokens(self) -> int:
        """Tokens that are given out and not computed."""
        return self._num_tokens.total() + self._num_passing_tokens

    def has_room(self, num_tokens: int, rank: int = 0) -> bool:
        """Tell whether a prompt of so many tokens to compute may be given out now."""
        num_ahead = self.num_ahead(rank)
        return num_ahead < self.max_num_tokens or (
            num_tokens * SHORT_PART <= num_ahead and self._num_passing_tokens < self.max_num_tokens
        )

    def give(self, request_id: RequestId, num_tokens: int, rank: int = 0) -> None:
        """Count a prompt as given out."""
        is_passing = self.num_ahead(rank) >= self.max_num_tokens
        given = self._given[request_id] = _Given(num_tokens, rank, is_passing)
        self._count(given, num_tokens)

    def done(self, request_id: RequestId) -> bool:
        """Count a prompt as computed, or as given up; False if it was before."""
        given = self._given.pop(request_id, None)
        if given is not None:
            self._count(given, -given.num_tokens)
        return given is not None

    def num_ahead(self, rank: int) -> int:
        """Return the tokens that are computed before a prompt of a class, those that pass apart."""
        return sum(num for each, num in self._num_tokens.items() if each <= rank)

    def _count(self, given: _Given, num_tokens: int) -> None:
        if given.is_passing:
            self._num_passing_tokens += num_tokens
        else:
            self._num_tokens[given.rank] += num_tokens
