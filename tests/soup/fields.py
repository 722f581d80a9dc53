"""What the fields of a request may be: ordinary values, and those at the edges of their ranges."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from tests.end_to_end.known_bugs.recipes import Request

Draw = Callable[[Random], Any]  # Any: values of all fields

VOCABULARY = 259  # of the fake engine: a token a byte, and three control tokens
_ANSWER_LETTERS = "abcdefghijklmnopqrstuvwxyz  AEIOSTW"  # what its answers are made of
_END_OF_SEQUENCE = 257

_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_CONSTRAINTS: tuple[Request, ...] = (
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": _PERSON}}},
    {"guided_json": _PERSON},
    {"guided_regex": "[a-f]{3}(, [0-9]{2}){1,9}"},
    {"guided_choice": ["a long walk", "a short walk", "none"]},
)


def _one_of(values: Sequence[object]) -> Draw:
    return lambda random: random.choice(values)


def _number(low: float, high: float, *edges: float) -> Draw:
    """Draw from a range, often enough one of its edges."""
    return lambda random: (
        random.choice((low, high, *edges)) if random.random() < 0.3 else random.uniform(low, high)
    )


def _whole(low: int, high: int, *edges: int) -> Draw:
    return lambda random: (
        random.choice((low, high, *edges)) if random.random() < 0.3 else random.randint(low, high)
    )


def _stop(random: Random) -> str | list[str]:
    """One to three letters: met soon, late, or never."""
    stops = [
        "".join(random.choices(_ANSWER_LETTERS, k=random.choice((1, 2, 2, 3, 3))))
        for _ in range(random.choice((1, 1, 2, 16)))
    ]
    return stops[0] if random.random() < 0.5 else stops


def _stop_token_ids(random: Random) -> list[int]:
    return random.sample(range(VOCABULARY), k=random.choice((0, 1, 3, 128)))


def _logit_bias(random: Random) -> Mapping[str, float]:
    token_ids = [random.randrange(VOCABULARY - 3) for _ in range(random.choice((1, 2, 5)))]
    token_ids += [_END_OF_SEQUENCE] * (random.random() < 0.3)
    values = (-100, -3, 0, 2.5, 6, 100)
    return {str(token_id): random.choice(values) for token_id in token_ids}


def _name(random: Random) -> str:
    return random.choice(("", "a", "b", "x" * 128))


# How often each stands in a request, and its values.
_FIELDS: Mapping[str, tuple[float, Draw]] = {
    "model": (0.2, _one_of(("fake",))),
    "ignore_eos": (0.6, _one_of((True, True, False))),
    "stop": (0.25, _stop),
    "stop_token_ids": (0.15, _stop_token_ids),
    "skip_special_tokens": (0.2, _one_of((True, False))),
    "temperature": (0.7, _number(0, 2, 0, 0, 1e-3, 1)),
    "top_p": (0.3, _number(0, 1, 0.5)),
    "top_k": (0.3, _one_of((-1, 0, 1, 2, 40, VOCABULARY, 2**31 - 1))),
    "min_p": (0.2, _number(0, 1)),
    "repetition_penalty": (0.2, _number(0.5, 2, 0.01, 1, 10)),
    "presence_penalty": (0.2, _number(-2, 2, 0)),
    "frequency_penalty": (0.2, _number(-2, 2, 0)),
    "logit_bias": (0.15, _logit_bias),
    "seed": (0.7, _whole(0, 2**20, -(2**63), 2**63 - 1, -1)),
    "logprobs": (0.3, _one_of((False, True, 0, 1, 5, 20))),
    "echo": (0.15, _one_of((True, False))),
    "prompt_logprobs": (0.15, _one_of((0, 1, 20))),
    "tenant": (0.2, _name),
    "priority": (0.4, _whole(-3, 3, -100, 100)),
    "latency_class": (0.3, _one_of(("interactive", "standard", "batch", None))),
    "deadline_ms": (0.1, _one_of((120_000, 3_600_000))),
    "cache_salt": (0.15, _name),
    "route": (0.8, _one_of(("remote", "local", "auto"))),
    "speculation": (0.3, _one_of(("off", "ngram"))),
    "num_speculative_tokens": (0.3, _whole(0, 6, 64)),
    "speculation_mode": (0.2, _one_of(("exact",))),  # the one whose answers can be foretold
    "allow_other_numerics": (0.1, _one_of((True, False))),
    "client_request_id": (0.2, _name),
    "tools": (0.05, _one_of((None,))),
    "tool_choice": (0.05, _one_of(("none", None))),
}
_CONSTRAINED = 0.1
_SEVERAL = 0.1
_MINIMUM = 0.25


def draw_fields(random: Random, max_tokens: int | None) -> Request:
    """Return fields that fit together, for an answer of at most so many tokens."""
    found: Request = {
        name: draw(random) for name, (often, draw) in _FIELDS.items() if random.random() < often
    }
    if max_tokens is not None:
        found["max_tokens"] = max_tokens
    if random.random() < _MINIMUM:
        found["min_tokens"] = random.randint(0, max_tokens or 1)
    if random.random() < _SEVERAL:
        found["n"] = random.choice((1, 2, 3, 3, 5))
        found |= {"best_of": found["n"]} if random.random() < 0.3 else {}
    if found.get("logprobs") not in (None, False) and random.random() < 0.3:
        found["top_logprobs"] = random.choice((0, 3, 20))
    if random.random() < _CONSTRAINED:
        found |= random.choice(_CONSTRAINTS)
    return found
