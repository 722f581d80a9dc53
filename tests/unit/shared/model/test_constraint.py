"""The masks of constraints against enumeration, and what is refused as a constraint."""

import itertools
import json
import re
from collections.abc import Callable, Iterable
from typing import Literal

import jsonschema
import numpy as np
import pytest

from slipstream.services.scheduler.constraints import constraint_of
from slipstream.shared.errors import ConstraintError
from slipstream.shared.messages.generate import GenerateRequest
from slipstream.shared.messages.sampling import Constraint
from slipstream.shared.model.constraint import Matcher
from slipstream.shared.model.grammar import check

from .constraint_samples import CONTROL, SmallVocabulary, byte_vocabulary, matchers_of, open_regex

_ALPHABET = "ab0./"
_MAX_LENGTH = 6
_LETTERS = SmallVocabulary(
    [
        *(
            "".join(letters).encode()
            for length in (1, 2)
            for letters in itertools.product(_ALPHABET, repeat=length)
        ),
        *(b"aab", CONTROL, b"", CONTROL),
    ]
)
_PATTERNS = [
    "",
    "a",
    "a*b?0{0,2}",
    "(ab|ba|aab){1,2}",
    "^(a|b)+$",
    "[^a]{2,3}",
    "a|ab|aba|b",
    r"\d\.\d",
    r"a/b\/a",
    "(a(b(0)?)?)?",
    "(?:a.){1,3}",
]


def _matching(pattern: str) -> set[bytes]:
    return {
        text.encode()
        for length in range(_MAX_LENGTH + 1)
        for text in map("".join, itertools.product(_ALPHABET, repeat=length))
        if re.fullmatch(pattern, text)
    }


def _check_masks(
    vocabulary: SmallVocabulary, open_matcher: Callable[[], Matcher], answers: set[bytes]
) -> int:
    """
    Compare each mask on the way to some answers with what enumeration allows; count them.

    Where the list of answers is cut at `_MAX_LENGTH`, outputs stay a token away from there.
    """
    beginnings = {answer[:end] for answer in answers for end in range(len(answer) + 1)}
    is_cut = max(map(len, answers)) >= _MAX_LENGTH
    max_length = _MAX_LENGTH - max(map(len, vocabulary.tokens)) if is_cut else _MAX_LENGTH
    outputs: list[list[int]] = [[]]
    num_checked = 0
    while outputs:
        output = outputs.pop()
        said = vocabulary.output_of(output)
        matcher = open_matcher()
        for token_id in output:
            matcher.accept(token_id)
        written = [
            token_id
            for token_id, token in enumerate(vocabulary.tokens)
            if token not in (b"", CONTROL) and said + token in beginnings
        ]
        ends = vocabulary.eos_token_ids if said in answers else []

        assert sorted([*written, *ends]) == np.flatnonzero(matcher.allowed()).tolist(), said
        if output:
            assert matcher.is_complete == (not written), said

        num_checked += 1
        outputs += [
            [*output, token_id]
            for token_id in written
            if len(said + vocabulary.tokens[token_id]) <= max_length
        ]
    return num_checked


@pytest.mark.parametrize("pattern", _PATTERNS)
def test_tokens_are_allowed_that_enumeration_allows(pattern: str) -> None:
    matchers = matchers_of(_LETTERS)
    constraint = Constraint("regex", pattern)

    num_checked = _check_masks(_LETTERS, lambda: matchers.open(constraint), _matching(pattern))

    assert num_checked > 0


def test_choices_of_any_characters_allow_what_enumeration_allows() -> None:
    choices = ["a|b", "a|bc", "(", "\\d", "[x]", " ", "\n\t", "/", "é̂", "😀", "{}", "$^", "\x00"]
    requested = constraint_of(GenerateRequest(guided_choice=[*choices, "a|b"]))
    assert requested is not None
    vocabulary = byte_vocabulary(b"a|", b"|b", b"\n\t", "é".encode(), b"[x]", b"/a")
    matchers = matchers_of(vocabulary)
    answers = {choice.encode() for choice in choices}

    assert _check_masks(vocabulary, lambda: matchers.open(requested.constraint), answers) > 20


def test_ids_beyond_the_vocabulary_and_tokens_without_bytes_are_never_allowed() -> None:
    """The model's rows may be longer than the tokenizer's vocabulary."""
    matcher = matchers_of(_LETTERS, num_padding=5).open(Constraint("regex", "(?s:.*)"))
    mask = matcher.allowed()

    assert len(_LETTERS.tokens) + 5 == len(mask)
    assert not mask[len(_LETTERS.tokens) :].any()
    assert {i for i, token in enumerate(_LETTERS.tokens) if token} == set(np.flatnonzero(mask))


def test_what_looks_like_a_control_token_is_written_in_text() -> None:
    vocabulary = byte_vocabulary()
    matcher = open_regex(vocabulary, "<[|]end[|]>")
    for value in b"<|end|>":
        assert [value] == np.flatnonzero(matcher.allowed()).tolist()
        matcher.accept(value)

    assert matcher.is_complete


def test_a_character_may_be_split_over_tokens() -> None:
    vocabulary = byte_vocabulary("aü".encode()[:2])
    matcher = open_regex(vocabulary, "aü|x")

    assert [ord("a"), ord("x"), 256] == np.flatnonzero(matcher.allowed()).tolist()
    matcher.accept(256)
    assert ["ü".encode()[1]] == np.flatnonzero(matcher.allowed()).tolist()


def test_every_end_of_sequence_token_ends_an_answer_that_matches() -> None:
    vocabulary = byte_vocabulary(num_eos=3)
    matcher = open_regex(vocabulary, "ab?")
    matcher.accept(ord("a"))

    assert [ord("b"), 256, 257, 258] == np.flatnonzero(matcher.allowed()).tolist()
    assert not matcher.is_complete
    matcher.accept(258)
    assert matcher.is_complete
    assert [256, 257, 258] == np.flatnonzero(matcher.allowed()).tolist()


def test_a_token_that_is_not_allowed_is_an_error() -> None:
    matcher = open_regex(byte_vocabulary(), "ab")

    with pytest.raises(ConstraintError):
        matcher.accept(ord("b"))


def test_a_model_without_end_of_sequence_has_no_matchers() -> None:
    with pytest.raises(ConstraintError, match="end-of-sequence"):
        open_regex(SmallVocabulary([b"a"]), "a")


def test_a_constraint_that_the_vocabulary_cannot_write_is_an_error() -> None:
    matcher = open_regex(SmallVocabulary([b"a", CONTROL]), "ab")
    matcher.accept(0)

    with pytest.raises(ConstraintError, match="no answer can match"):
        matcher.allowed()


_SCHEMAS: list[dict[str, object]] = [
    {},
    {"type": "object"},
    {"type": "array", "items": {"type": "integer", "minimum": -3, "maximum": 12}, "maxItems": 3},
    {"enum": ["a", 1, None, {"b": [True]}]},
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "kind": {"enum": ["cat", "dog"]},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,3}$"}},
            "when": {"type": "string", "format": "date"},
        },
        "required": ["kind", "name"],
        "additionalProperties": False,
    },
    {"$defs": {"n": {"type": "number"}}, "anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]},
]


@pytest.mark.parametrize("schema", _SCHEMAS)
def test_random_walks_that_end_validate(schema: dict[str, object]) -> None:
    vocabulary = byte_vocabulary(b'":', b'"}', b"true", b"  ", b'{"', b'","', b"12")
    matchers = matchers_of(vocabulary)
    num_ended = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        matcher = matchers.open(Constraint("json", json.dumps(schema)))
        output: list[int] = []
        while not matcher.is_complete and len(output) < 120:
            allowed = np.flatnonzero(matcher.allowed())
            # Quotes and brackets end what would go on for ever.
            ending = [i for i in allowed if vocabulary.bytes_of(i)[:1] in (b'"', b"}", b"]", b"<")]
            output.append(int(random.choice(ending or allowed)))
            matcher.accept(output[-1])
        if matcher.is_complete:
            num_ended += 1
            jsonschema.validate(json.loads(vocabulary.output_of(output)), schema)

    assert num_ended > 10


def test_blanks_between_json_tokens_come_to_an_end() -> None:
    """A small model that may add blanks for ever does."""
    matcher = matchers_of(byte_vocabulary()).open(Constraint("json", '{"type":"object"}'))
    num_blanks = 0
    matcher.accept(ord("{"))
    matcher.accept(ord("\n"))
    while matcher.allowed()[ord(" ")]:
        matcher.accept(ord(" "))
        num_blanks += 1

    assert 20 == num_blanks
    assert matcher.allowed()[ord("}")]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json", '{"type":"objekt"}', "Invalid type: objekt"),
        ("json", '{"not":{}}', 'Unimplemented keys: ["not"]'),
        ("json", '{"type":"array","uniqueItems":true}', 'Unimplemented keys: ["uniqueItems"]'),
        ("json", '{"type":"string","format":"colour"}', "Unknown format: colour"),
        ("json", '{"enum":[]}', "Unsatisfiable schema"),
        ("json", '{"$ref":"#"}', "no answer can match it"),
        ("json", '{"$ref":"https://example.org/x"}', "Default retriever does not fetch"),
        ("json", '{"properties":5}', "properties must be an object"),
        ("json", '{"type":"string","pattern":"(a"}', "unclosed group"),
        ("json", '{"a":' * 200 + "1" + "}" * 200, "recursion limit exceeded"),
        ("regex", "(a", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", r"(a)\1", "backreferences are not supported"),
        ("regex", "(" * 20_000 + ")" * 20_000, "nested parentheses"),
        ("regex", r"[^\x00-\U0010ffff]", "no answer can match it"),
    ],
)
def test_what_cannot_be_enforced_is_refused_in_one_short_sentence(
    kind: Literal["json", "regex"], text: str, message: str
) -> None:
    with pytest.raises(ConstraintError) as caught:
        check(Constraint(kind, text))

    assert message in str(caught.value)
    assert len(str(caught.value)) <= 140
    assert "\n" not in str(caught.value)


def test_what_costs_too_much_to_compile_is_refused() -> None:
    properties: dict[str, object] = {f"p{number}": {} for number in range(2500)}

    with pytest.raises(ConstraintError, match="grammar size"):
        check(Constraint("json", json.dumps({"properties": properties})))


def test_an_answer_that_comes_to_cost_too_much_is_an_error_and_not_a_wait() -> None:
    """A regex with as many states as it has read bytes makes them one by one."""
    matcher = open_regex(byte_vocabulary(), "(?s:.)*a(?s:.){24}")
    random = np.random.default_rng(0)

    with pytest.raises(ConstraintError, match="too many states"):
        _walk(matcher, map(int, random.choice([ord("a"), ord("b")], 100_000)))


def _walk(matcher: Matcher, token_ids: Iterable[int]) -> None:
    for token_id in token_ids:
        matcher.allowed()
        matcher.accept(token_id)
