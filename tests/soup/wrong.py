"""Requests that must be refused: one wrong value, of the field that the answer has to name."""

import math
from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from tests.end_to_end.client import Encoding
from tests.end_to_end.known_bugs.recipes import Request

from .fields import VOCABULARY

_INVALID = "invalid_request"
_HELLO = [{"role": "user", "content": "Hello"}]
_LONG = "x" * 129
_MAX_BITS = 63

# Values of each field that nothing else makes right. None of them can be taken for another type.
_VALUES: Mapping[str, tuple[object, ...]] = {
    "prompt": (7, ["a"]),
    "stream": ("yes", 2),
    "max_tokens": (0, -1, 8193, 10**40, "8", 1.5, True),
    "min_tokens": (-1, 8193, "1"),
    "ignore_eos": ("no", 1),
    "stop": ("", [""], ["a", ""], ["a"] * 17, "x" * 513, 7),
    "stop_token_ids": ([-1], [VOCABULARY], [0] * 129, ["a"]),
    "skip_special_tokens": ("no",),
    "temperature": (-0.1, 2.1, math.nan, math.inf, "hot"),
    "top_p": (-0.1, 1.1, math.nan),
    "top_k": (-2, 2**31, 1.5),
    "min_p": (-0.1, 1.1),
    "repetition_penalty": (0, -1, 10.1, math.nan),
    "presence_penalty": (-2.1, 2.1),
    "frequency_penalty": (-2.1, 2.1, -math.inf),
    "logit_bias": ({"a": 1}, {"-1": 1}, {str(VOCABULARY): 1}, {"1": 101}, {"1": math.nan}, [1]),
    "seed": (2**63, -(2**63) - 1, "1"),
    "n": (0, -1, 17, "2"),
    "logprobs": (-1, 21, "all"),
    "prompt_logprobs": (-1, 21, True),
    "echo": ("yes",),
    "response_format": ({"type": "xml"}, {"type": "json_schema"}, "json"),
    "guided_json": ("{", 7, {"type": "no such type"}),
    "guided_regex": ("", "(", 7),
    "guided_choice": ([], [""], "a"),
    "tools": ([{"type": "function"}],),
    "tool_choice": ("auto",),
    "request_key": ("a",),
    "tenant": (_LONG, 7),
    "priority": (-101, 101, "high"),
    "deadline_ms": (0, -1, 3_600_001, "1"),
    "cache_salt": (_LONG,),
    "adapter": ("a",),
    "route": ("scenic", 1),
    "latency_class": ("express", 1),
    "speculation": ("model",),
    "speculation_mode": ("fast", 1),
    "num_speculative_tokens": (-1, 65),
    "client_request_id": (_LONG,),
}
_BYTES: tuple[bytes, ...] = (
    b"",
    b"null",
    b"[1, 2]",
    b"Hello",
    b'{"prompt": "Hel',
    b"\x81\xa6prom",
    b"\x90",
    b"\xff\x00\xfe",
)


class Wrong(NamedTuple):
    """A body, and how it has to be refused."""

    body: Request | bytes
    code: str
    field: str | None
    encoding: Encoding | None = None  # the only one that holds the value


def spoil(random: Random, body: Request) -> Wrong:
    """Return a right request with something wrong in it."""
    kind = random.random()
    if kind < 0.1:
        return Wrong(random.choice(_BYTES), _INVALID, None)
    if kind < 0.25:
        return _spoil_source(random, body)
    if kind < 0.35:
        return _spoil_pair(random, body)
    field = random.choice(sorted(_VALUES))
    value = random.choice(_VALUES[field])
    others = {name: each for name, each in body.items() if name not in _rivals(field)}
    return Wrong({**others, field: value}, _INVALID, field, _encoding_for(value))


def _spoil_source(random: Random, body: Request) -> Wrong:
    others = {name: value for name, value in body.items() if name not in _rivals("prompt")}
    body, code, field = random.choice(
        (
            (others, _INVALID, "prompt"),
            ({**others, "prompt": ""}, _INVALID, "prompt"),
            ({**others, "messages": []}, _INVALID, "messages"),
            ({**others, "messages": [{"role": "user"}]}, _INVALID, "messages"),
            ({**others, "prompt_token_ids": []}, _INVALID, "prompt_token_ids"),
            ({**others, "prompt_token_ids": [VOCABULARY]}, _INVALID, "prompt_token_ids"),
            ({**others, "prompt": "a", "messages": _HELLO}, _INVALID, "messages"),
            ({**others, "prompt": "a" * 8192}, "context_length_exceeded", "prompt"),
            ({**others, "prompt": "a", "model": "gpt-9"}, "model_not_found", "model"),
            ({**others, "prompt": "a" * 2**20}, "message_too_large", None),
        )
    )
    return Wrong(body, code, field)


def _spoil_pair(random: Random, body: Request) -> Wrong:
    pair, field = random.choice(
        (
            ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
            ({"n": 2, "best_of": 3}, "best_of"),
            ({"logprobs": None, "top_logprobs": 3}, "top_logprobs"),
            ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        )
    )
    others = {name: value for name, value in body.items() if not name.startswith(("guid", "resp"))}
    return Wrong({**others, **pair}, _INVALID, field)


def _rivals(field: str) -> tuple[str, ...]:
    """Return what can't stand beside a wrong value without being named in its place."""
    sources = ("prompt", "messages", "prompt_token_ids")
    constraints = ("response_format", "guided_json", "guided_regex", "guided_choice")
    same = [group for group in (sources, constraints) if field in group]
    pairs = {"n": ("best_of",), "logprobs": ("top_logprobs",), "max_tokens": ("min_tokens",)}
    return same[0] if same else pairs.get(field, ())


def _encoding_for(value: object) -> Encoding | None:
    """JSON has no NaN, and msgpack no whole number beyond 64 bits."""
    for each in value.values() if isinstance(value, dict) else [value]:
        if isinstance(each, float) and not math.isfinite(each):
            return "msgpack"
        if isinstance(each, int) and each.bit_length() > _MAX_BITS:
            return "json"
    return None
