"""What the requests of a load are: their tokens, and on whose behalf they come. Pure."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.load.traces import (
    HASHED_TOKENS,
    Lengths,
    TracedRequest,
    fitting_factor,
)
from slipstream.shared.messages.common import LatencyClassName
from slipstream.shared.messages.packed import PackedInts

NameT = TypeVar("NameT", bound=str)

# Special tokens stand at either end of a vocabulary.
_FIRST_WORD = 1000
_FIRST_SHARE, _LAST_SHARE = 0.25, 0.8


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request that can be sent."""

    token_ids: PackedInts  # of the prompt
    num_output_tokens: int
    latency_class: LatencyClassName | None = None
    tenant: str | None = None
    temperature: float = 0.0
    seed: int | None = None
    speculation: str | None = "off"  # None: as the stack does it


@dataclass(frozen=True, slots=True)
class Shape:
    """How long a request is, and what its prompt shares with others."""

    lengths: Lengths
    hash_ids: Sequence[int] = ()
    tokens_per_hash: float = 0.0


class Shapes(Protocol):
    """The shapes of a load's requests, one a number."""

    def shape(self, number: int) -> Shape:
        """Return the same for the same number."""


@dataclass(frozen=True)
class SyntheticShapes:
    """Lengths around a mean: uniform from `1 - spread` to `1 + spread` times it."""

    mean: Lengths
    spread: float
    seed: int

    def shape(self, number: int) -> Shape:
        """Return lengths that depend on the seed and the number alone."""
        rng = _rng(self.seed, "lengths", number)
        prompt, output = (
            max(1, round(mean * rng.uniform(1 - self.spread, 1 + self.spread)))
            for mean in (self.mean.num_prompt_tokens, self.mean.num_output_tokens)
        )
        return Shape(Lengths(prompt, output))

    @property
    def max_num_tokens(self) -> int:
        """Prompt and answer of the longest."""
        both = (self.mean.num_prompt_tokens, self.mean.num_output_tokens)
        return sum(max(1, round(mean * (1 + self.spread))) for mean in both)


class TraceShapes:
    """The lengths of a trace in its order, scaled to fit; after its end it begins again."""

    def __init__(self, trace: Sequence[TracedRequest], max_num_tokens: int) -> None:
        self.factor = fitting_factor([each.lengths for each in trace], max_num_tokens)
        self.max_num_tokens = max_num_tokens
        self._trace = trace

    def shape(self, number: int) -> Shape:
        """Return the shape of the request at that place of the trace."""
        traced = self._trace[number % len(self._trace)]
        lengths = traced.lengths.times(self.factor).within(self.max_num_tokens)
        return Shape(lengths, traced.hash_ids, HASHED_TOKENS * self.factor)


@dataclass(frozen=True)
class RequestMaker:
    """Makes the requests of a load; one of a number is the same in every run."""

    shapes: Shapes
    vocab_size: int
    seed: int
    classes: Mapping[LatencyClassName, float]  # with their shares; empty: requests name none
    tenants: Mapping[str, float]

    def make(self, number: int) -> PlannedRequest:
        """Return a request."""
        shape = self.shapes.shape(number)
        rng = _rng(self.seed, "whose", number)
        return PlannedRequest(
            PackedInts(self._prompt(shape, number)),
            shape.lengths.num_output_tokens,
            _pick(self.classes, rng),
            _pick(self.tenants, rng),
        )

    def _prompt(self, shape: Shape, number: int) -> list[int]:
        """Return the tokens: what equal hash ids stand for is equal, all else is like no other."""
        num_tokens = shape.lengths.num_prompt_tokens
        token_ids: list[int] = []
        for idx, hash_id in enumerate(shape.hash_ids):
            end = min(num_tokens, round((idx + 1) * shape.tokens_per_hash))
            token_ids += self._tokens(_rng(self.seed, "shared", hash_id), end - len(token_ids))
        rng = _rng(self.seed, "own", number)
        return token_ids + self._tokens(rng, num_tokens - len(token_ids))

    def _tokens(self, rng: random.Random, num_tokens: int) -> list[int]:
        first = min(_FIRST_WORD, int(_FIRST_SHARE * self.vocab_size))
        return rng.choices(range(first, int(_LAST_SHARE * self.vocab_size)), k=num_tokens)


def check_lengths(max_num_tokens: int, max_context_length: int, remedy: str) -> None:
    """Raise ConfigurationError for requests that no worker could take."""
    if max_num_tokens > max_context_length:
        raise ConfigurationError(
            f"the longest request has {max_num_tokens} tokens, prompt and answer together, and the "
            f"model's context has {max_context_length}: {remedy}"
        )


def _pick(shares: Mapping[NameT, float], rng: random.Random) -> NameT | None:
    if not shares:
        return None
    return rng.choices(list(shares), list(shares.values()))[0]


def _rng(seed: int, what: str, number: int) -> random.Random:
    return random.Random(f"{seed} {what} {number}")  # noqa: S311 - a workload is no secret
