"""What a request may ask for: a few values a feature, by name, and what constraints allow."""

from collections.abc import Mapping
from typing import Any

from .covering import Row
from .plain_language import Language, either, literal, one_of, repeated, then

Fields = dict[str, Any]  # Any: fields of a request

# Tokens: end-of-sequence, "!", ",", " a", " the", " and", and the quotation mark of JSON.
_END, _BANG, _COMMA, _A, _THE, _AND, _QUOTE = 2, 17, 28, 253, 260, 284, 18

_SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": ["boolean", "integer"]}},
    "required": ["ok"],
    "additionalProperties": False,
}
_CHOICES = ["the end!", "the naïve end!", "the naïve ending!", "apple!"]


def _bias(by_token: Mapping[int, float]) -> dict[str, float]:
    return {str(token_id): bias for token_id, bias in by_token.items()}


FEATURES: dict[str, dict[str, Fields]] = {
    "prompt": {
        "tale": {
            "prompt": "The cat sat on the mat and the dog sat on the log. The bird sat on the word "
            "and the frog sat on the hog. The cat sat on the"
        },
        "list": {"prompt": "1. red apple\n2. green pear\n3. yellow lemon\n" * 3 + "1. red"},
        "chat": {"messages": [{"role": "user", "content": "Name three rivers, and the sea."}]},
        "languages": {"prompt": "Grüße aus Zürich! 你好,世界。 Привет 🌍🚀 = naïve café, und"},
        "one token": {"prompt_token_ids": [504]},
    },
    "sampling": {
        "greedy": {"temperature": 0},
        "of the model": {},
        "hot": {"temperature": 1.6},
        "top_k": {"temperature": 1, "top_k": 12},
        "top_p": {"temperature": 0.9, "top_p": 0.7},
        "min_p": {"temperature": 1.5, "min_p": 0.08},
        "all": {"temperature": 1.1, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    },
    "logprobs": {
        "off": {},
        "sampled": {"logprobs": True},
        "top 4": {"logprobs": True, "top_logprobs": 4},
        "top 20": {"logprobs": 20},
    },
    # In "apple" one comes twice; in "apple" and "true" two begin at one place.
    "stop": {
        "off": {},
        "string": {"stop": "p"},
        "strings": {"stop": ["tr", "true", "app", "apple", "\n"]},
        "ids": {"stop_token_ids": [_COMMA, _A, _BANG]},
        "both": {"stop": ["in", "als"], "stop_token_ids": [_THE, _BANG]},
    },
    "penalties": {
        "off": {},
        "repetition": {"repetition_penalty": 1.4},
        "presence": {"presence_penalty": 1.5},
        "frequency": {"frequency_penalty": 0.9},
        "all": {"repetition_penalty": 1.1, "presence_penalty": 0.4, "frequency_penalty": 0.3},
        "rewards": {"repetition_penalty": 0.9, "presence_penalty": -1, "frequency_penalty": -0.2},
    },
    "bias": {
        "off": {},
        "towards": {"logit_bias": _bias({_THE: 5, _COMMA: 4, _QUOTE: 3})},
        "away": {"logit_bias": _bias({_THE: -100, _AND: -1, _A: -1.5, _COMMA: -99.5})},
        "end": {"logit_bias": _bias({_END: 13, _THE: 1})},
    },
    "grammar": {
        "off": {},
        "regex": {"guided_regex": "[a-z]{2,8}( [a-z]{1,8}){0,6}[.!]?"},
        "choice": {"guided_choice": _CHOICES},
        "json": {"response_format": {"type": "json_schema", "json_schema": {"schema": _SCHEMA}}},
    },
    "seed": {"none": {}, "zero": {"seed": 0}, "below": {"seed": -5}, "last": {"seed": 2**63 - 1}},
    "n": {"1": {}, "2": {"n": 2}, "3": {"n": 3}},
    "echo": {
        "off": {},
        "echo": {"echo": True},
        "echo, top 2": {"echo": True, "prompt_logprobs": 2},
        "logprobs alone": {"prompt_logprobs": 0},
    },
    "stream": {"no": {}, "yes": {"stream": True}},
    "end": {
        "free": {},
        "late": {"min_tokens": 4},
        "soon": {"max_tokens": 3},
        "at length": {"ignore_eos": True},
        "both": {"min_tokens": 9, "ignore_eos": True, "skip_special_tokens": False},
    },
    "speculation": {"off": {"speculation": "off"}, "ngram": {"speculation": "ngram"}},
    "route": {"local": {"route": "local"}, "remote": {"route": "remote"}},
}


# Where rules of three features meet, most of which a row of pairs would not show: what may not end
# the answer yet, though it is likely or the only thing left, and what may again. Their seeds are
# fixed, and so is what ends them.
MEETINGS: tuple[Row, ...] = (
    {"stop": "ids", "grammar": "choice", "end": "late", "n": "3", "seed": "zero"},
    {"stop": "both", "grammar": "choice", "end": "both", "n": "2", "seed": "last"},
    {"stop": "strings", "grammar": "json", "end": "late", "n": "3", "seed": "below"},
    {"stop": "ids", "bias": "end", "grammar": "off", "end": "late", "n": "3", "seed": "zero"},
    {"bias": "end", "grammar": "off", "end": "late", "n": "3", "stop": "off", "seed": "last"},
    {"bias": "end", "grammar": "off", "end": "both", "n": "3", "stop": "off", "seed": "below"},
    {
        "bias": "end",
        "grammar": "regex",
        "end": "at length",
        "n": "3",
        "stop": "off",
        "seed": "zero",
    },
)


def fields_of(row: Row) -> Fields:
    """Return the fields of the request that a row stands for."""
    fields: Fields = {"max_tokens": 24}
    for feature, value in row.items():
        fields |= FEATURES[feature][value]
    return fields


def _language_of_regex() -> Language:
    letter = one_of("abcdefghijklmnopqrstuvwxyz")
    words = repeated(then(one_of(" "), repeated(letter, 1, 8)), 0, 6)
    return then(repeated(letter, 2, 8), words, repeated(one_of(".!"), 0, 1))


def _language_of_schema() -> Language:
    """Between tokens of JSON stands nothing, one blank, or a line break and up to 20 blanks."""
    blank, digits = one_of(" "), repeated(one_of("0123456789"), 0)
    gap = repeated(either(blank, then(one_of("\n"), repeated(blank, 0, 20))), 0, 1)
    natural = either(one_of("0"), then(one_of("123456789"), digits))
    value = either(literal("true"), literal("false"), then(repeated(one_of("-"), 0, 1), natural))
    parts = (gap, literal('"ok"'), gap, literal(":"), gap, value, gap)
    return then(literal("{"), *parts, literal("}"))


LANGUAGES: dict[str, Language | None] = {
    "off": None,
    "regex": _language_of_regex(),
    "choice": either(*map(literal, _CHOICES)),
    "json": _language_of_schema(),
}
