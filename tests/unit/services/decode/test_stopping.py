"""Where a sequence ends and which text is certain, against a slow and obvious reference."""

import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.services.decode.stopping import Ending, StopChecker
from slipstream.shared.messages.sampling import SamplingParameters

# A vocabulary in which stop strings lie inside tokens, across them and over split characters.
PIECES = [
    b"a",
    b"b",
    b"ab",
    b"ba",
    b"aab",
    b" ",
    b"\xc3",
    b"\xa9",
    b"\xe2\x82",
    b"\xac",
    b"",
    b"b\xc3",
]
EOS, STOP_ID = len(PIECES), len(PIECES) + 1
STOPS = ["ab", "aba", "b", "bb", "a b", "é", "é€", "€", "b\ufffd", "\ufffd"]


class Bytes:
    """A detokenizer over the pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(PIECES[token_id] if token_id < len(PIECES) else b"")

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def first_match(text: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """Try every place, and the longest stop string first."""
    for start in range(len(text)):
        for stop in sorted(stops, key=len, reverse=True):
            if text.startswith(stop, start):
                return start, stop
    return None


def reference(
    token_ids: list[int], parameters: SamplingParameters
) -> tuple[str, Ending | None, int]:
    """Look through the whole text after every token."""
    detokenizer = Bytes()
    text, start = "", 0
    eos = set() if parameters.ignore_eos else {EOS}
    for number, token_id in enumerate(token_ids, 1):
        may_end = number >= parameters.min_tokens
        is_checked = number > parameters.min_tokens or parameters.min_tokens <= 1
        ending = None
        if may_end and token_id in eos:
            ending = Ending("stop")
        elif may_end and token_id in parameters.stop_token_ids:
            return text + detokenizer.flush(), Ending("stop", token_id), number
        else:
            text += detokenizer.push(token_id)
        if not is_checked:
            start = len(text)
        found = first_match(text[start:], parameters.stop) if is_checked else None
        if ending is None and found is None and number >= parameters.max_tokens:
            ending = Ending("length")
        if found is None and ending is not None:
            text += detokenizer.flush()
            found = first_match(text[start:], parameters.stop) if is_checked else None
        if found is not None:
            return text[: start + found[0]], Ending("stop", found[1]), number
        if ending is not None:
            return text, ending, number
    return text, None, len(token_ids)


def walk(
    token_ids: list[int], parameters: SamplingParameters
) -> tuple[list[str], Ending | None, int]:
    checker = StopChecker(parameters, (EOS,), 10_000, Bytes())
    texts: list[str] = []
    for token_id in token_ids:
        text, ending = checker.push(token_id)
        texts.append(text)
        if ending is not None:
            return texts, ending, checker.num_tokens
    return texts, None, checker.num_tokens


PARAMETERS = st.builds(
    SamplingParameters,
    seed=st.just(1),
    stop=st.lists(st.sampled_from(STOPS), max_size=3).map(tuple),
    stop_token_ids=st.sampled_from([(), (STOP_ID,), (1, STOP_ID)]),
    min_tokens=st.integers(0, 4),
    max_tokens=st.integers(4, 12),
    ignore_eos=st.booleans(),
)


@settings(max_examples=1000)
@given(token_ids=st.lists(st.integers(0, STOP_ID), max_size=14), parameters=PARAMETERS)
def test_text_and_ending_are_those_of_the_reference(
    token_ids: list[int], parameters: SamplingParameters
) -> None:
    texts, ending, num_tokens = walk(token_ids, parameters)
    text, expected, expected_num_tokens = reference(token_ids, parameters)

    assert (expected, expected_num_tokens) == (ending, num_tokens)
    if ending is not None:
        assert text == "".join(texts)
    else:
        held = text.removeprefix("".join(texts))
        assert text == "".join(texts) + held
        assert not held or any(stop.startswith(held) for stop in parameters.stop), (
            "only what may become a stop string is held back"
        )


def push_all(checker: StopChecker, token_ids: list[int]) -> list[str]:
    return [checker.push(token_id)[0] for token_id in token_ids]


def make(*stop: str, **fields: object) -> StopChecker:
    parameters = SamplingParameters(seed=1, stop=stop, **fields)  # type: ignore[arg-type] # checked by each test
    return StopChecker(parameters, (EOS,), 100, Bytes())


def test_text_is_sent_as_soon_as_no_stop_string_can_follow() -> None:
    """Held: a, ab, "ab "; then "ab a" can't become "ab b" any more, but its last a may."""
    assert ["", "", "", "ab "] == push_all(make("ab b"), [0, 1, 5, 0])


def test_a_stop_string_across_tokens_is_cut_out() -> None:
    checker = make("aba")

    assert ["", ""] == push_all(checker, [0, 1])
    assert ("", Ending("stop", "aba")) == checker.push(0)


def test_the_context_ends_what_max_tokens_would_not() -> None:
    checker = StopChecker(SamplingParameters(seed=1, max_tokens=50), (EOS,), 2, Bytes())
    checker.push(0)

    assert ("a", Ending("length")) == checker.push(0)


def test_the_end_of_sequence_has_no_text_and_flushes() -> None:
    checker = make()
    checker.push(6)

    assert ("\ufffd", Ending("stop")) == checker.push(EOS)


@pytest.mark.parametrize(("token_id", "reason"), [(EOS, None), (STOP_ID, STOP_ID)])
def test_endings_wait_for_min_tokens(token_id: int, reason: int | None) -> None:
    checker = make(min_tokens=3, stop_token_ids=(STOP_ID,))
    assert (None, None) == (checker.push(token_id)[1], checker.push(token_id)[1])

    assert Ending("stop", reason) == checker.push(token_id)[1]


def test_a_stop_string_must_lie_wholly_behind_min_tokens() -> None:
    checker = make("ab", min_tokens=2)

    assert ["ab", "a"] == push_all(checker, [2, 0]), "nothing of it is held back"
    assert ("b", None) == checker.push(1)
    assert ("", Ending("stop", "ab")) == checker.push(2)


@pytest.mark.parametrize(
    "fields", [{}, {"max_tokens": 2}, {"min_tokens": 9, "max_tokens": 9}, {"ignore_eos": True}]
)
def test_the_end_of_a_constraint_ends_the_answer(fields: dict[str, object]) -> None:
    """Over min_tokens and ignore_eos, and at max_tokens it is no lack of length."""
    parameters = SamplingParameters(seed=1, **fields)  # type: ignore[arg-type] # fields of several types
    checker = StopChecker(parameters, [EOS], 100, Bytes())

    assert ("a", None) == checker.push(0)
    assert ("b", Ending("stop")) == checker.push(1, is_last=True)


@pytest.mark.parametrize("stop_id", [EOS, STOP_ID])
def test_an_end_of_sequence_that_completes_a_constraint_says_nothing(stop_id: int) -> None:
    parameters = SamplingParameters(seed=1, min_tokens=5, ignore_eos=True)
    checker = StopChecker(parameters, [EOS], 100, Bytes())

    assert ("", Ending("stop")) == checker.push(stop_id, is_last=True)


def test_a_stop_string_before_the_end_of_a_constraint_comes_first() -> None:
    checker = StopChecker(SamplingParameters(seed=1, stop=("ab",)), [EOS], 100, Bytes())

    assert ("", None) == checker.push(0)
    assert ("", Ending("stop", "ab")) == checker.push(1, is_last=True)


def test_what_was_held_back_for_a_stop_string_comes_with_the_end_of_a_constraint() -> None:
    checker = StopChecker(SamplingParameters(seed=1, stop=("ab",)), [EOS], 100, Bytes())

    assert ("a", Ending("stop")) == checker.push(0, is_last=True)
