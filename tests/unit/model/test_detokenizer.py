"""A stream of tokens becomes whole characters, and joined it is the text decoded at once."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library
from tokenizers.decoders import ByteFallback, Fuse, Replace, Strip
from tokenizers.decoders import Sequence as Decoders
from tokenizers.models import BPE

from slipstream.shared.model.detokenizer import IncrementalDetokenizer, WindowTextStream
from slipstream.shared.model.tokenizer import Tokenizer

FFFD = "\ufffd"
TEXTS = ["plain words", "naïve é", "日本語 中文", "👩‍👩‍👧‍👦🇩🇪👍🏽", "genuine \ufffd here", "\ufffd"]


def byte_ids(tokenizer: Tokenizer, content: bytes) -> list[int]:
    """The tokens of bytes that need be no text."""
    by_byte = {byte: token_id for token_id in range(256) for byte in bytes_of(tokenizer, token_id)}
    return [by_byte[byte] for byte in content]


def bytes_of(tokenizer: Tokenizer, token_id: int) -> bytes:
    return tokenizer.bytes_of(token_id)


def stream(
    tokenizer: Tokenizer, prompt: Sequence[int], output: Sequence[int], *, skip: bool = True
) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip)
    return [detokenizer.push(token_id) for token_id in output] + [detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_only_whole_characters_come_out(fake_tokenizer: Tokenizer, text: str) -> None:
    pieces = stream(fake_tokenizer, fake_tokenizer.encode("é"), fake_tokenizer.encode(text))

    assert text == "".join(pieces)
    assert all(len(piece) <= 1 for piece in pieces)
    assert "" == pieces[-1]


def test_a_character_comes_with_its_last_byte(fake_tokenizer: Tokenizer) -> None:
    output = byte_ids(fake_tokenizer, "a👍b".encode())

    assert ["a", "", "", "", "👍", "b", ""] == stream(fake_tokenizer, [], output)


def test_end_inside_a_character_gives_one_replacement(fake_tokenizer: Tokenizer) -> None:
    output = byte_ids(fake_tokenizer, "a👍".encode()[:-1])

    assert ["a", "", "", "", FFFD] == stream(fake_tokenizer, [], output)


def test_invalid_bytes_are_replaced_at_once(fake_tokenizer: Tokenizer) -> None:
    """They are not the beginning of anything: nothing is held back for them."""
    output = byte_ids(fake_tokenizer, b"\xff\xfea\xe2b")

    assert [FFFD, FFFD, "a", "", FFFD + "b", ""] == stream(fake_tokenizer, [], output)


@given(st.lists(st.integers(0, 260)), st.lists(st.integers(0, 260)), st.booleans())
def test_joined_pieces_are_the_text_decoded_at_once(
    fake_tokenizer: Tokenizer,
    prompt: list[int],
    output: list[int],
    skip: bool,
) -> None:
    """Any tokens, invalid and unknown ones too, after a prompt that ends with a character."""
    prompt = [*prompt, *fake_tokenizer.encode("x")]
    before = fake_tokenizer.decode(prompt, skip_special_tokens=skip)
    after = fake_tokenizer.decode(prompt + output, skip_special_tokens=skip)

    assert after[len(before) :] == "".join(stream(fake_tokenizer, prompt, output, skip=skip))


@pytest.mark.model
@pytest.mark.timeout(120)
def test_default_model_streams_what_it_decodes(model_dir: Path) -> None:
    tokenizer = Tokenizer(model_dir)
    generator = random.Random(0)
    for _ in range(300):
        token_ids = [generator.randrange(tokenizer.vocab_size) for _ in range(60)]
        prompt, output = [*token_ids[:20], *tokenizer.encode("x")], token_ids[20:]
        before, after = tokenizer.decode(prompt), tokenizer.decode(prompt + output)

        assert after[len(before) :] == "".join(stream(tokenizer, prompt, output))


def test_character_begun_in_the_prompt_is_finished(fake_tokenizer: Tokenizer) -> None:
    token_ids = byte_ids(fake_tokenizer, "👍".encode())

    assert ["", "👍", ""] == stream(fake_tokenizer, token_ids[:2], token_ids[2:])


def test_unfinished_prompt_adds_nothing_of_its_own(fake_tokenizer: Tokenizer) -> None:
    """The prompt's own text already ends with U+FFFD."""
    prompt = byte_ids(fake_tokenizer, "👍".encode()[:2])

    assert [""] == stream(fake_tokenizer, prompt, [])
    assert ["a", ""] == stream(fake_tokenizer, prompt, byte_ids(fake_tokenizer, b"a"))


def test_control_tokens_are_skipped_or_shown(fake_tokenizer: Tokenizer) -> None:
    first, second = byte_ids(fake_tokenizer, "é".encode())

    assert ["", "", "é", ""] == stream(fake_tokenizer, [], [first, 256, second])
    shown = ["", FFFD + "<|im_start|>", FFFD, ""]
    assert shown == stream(fake_tokenizer, [], [first, 256, second], skip=False)


def test_unknown_tokens_are_passed_over(fake_tokenizer: Tokenizer) -> None:
    assert ["", "", "", ""] == stream(fake_tokenizer, [-5], [-1, 2**40, 5000])


def sentence_piece_tokenizer(directory: Path) -> Tokenizer:
    """Made like Llama 2's: spaces are U+2581, unknown characters are byte tokens."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁a", "b", "é"]
    vocabulary = {word: token_id for token_id, word in enumerate(words)}
    model = BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    library = Library(model)
    library.add_special_tokens([AddedToken("</s>", special=True)])
    library.decoder = Decoders([Replace("▁", " "), ByteFallback(), Fuse(), Strip(" ", 1, 0)])
    library.save(str(directory / "tokenizer.json"))
    return Tokenizer(directory)


@given(
    st.lists(
        st.sampled_from([[258], [259], [260], [261], [262], "é", "€", "👍", "\n"]), max_size=60
    )
)
def test_windows_give_the_text_of_sentence_piece_vocabularies(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int] | str]
) -> None:
    tokenizer = sentence_piece_tokenizer(tmp_path_factory.getbasetemp())
    output: list[int] = []
    for part in parts:
        output += part if isinstance(part, list) else [byte + 1 for byte in part.encode()]
    prompt = [258, 260]
    before = tokenizer.decode(prompt)

    pieces = stream(tokenizer, prompt, output)

    assert tokenizer.decode(prompt + output)[len(before) :] == "".join(pieces)
    assert not any(FFFD in piece for piece in pieces)


def test_b12_leading_spaces_of_sentence_piece_tokens_are_kept(tmp_path: Path) -> None:
    """Decoded piece by piece each would lose the space that it begins with."""
    tokenizer = sentence_piece_tokenizer(tmp_path)
    the, a, b = 258, 259, 260
    prompt, output = [the, a], [the, b, a, the, the, b, b, a, the, a, a, the]

    pieces = stream(tokenizer, prompt, output)

    before = tokenizer.decode(prompt)
    assert " the" == pieces[0]
    assert tokenizer.decode(prompt + output) == before + "".join(pieces)
    assert tokenizer.decode(output) == "".join(pieces)[1:]


def test_windows_survive_bytes_that_are_no_text(tmp_path: Path) -> None:
    tokenizer = sentence_piece_tokenizer(tmp_path)
    output = [0xFF + 1] * 500 + [258]

    text = "".join(stream(tokenizer, [258], output))

    assert text.endswith(" the")
    assert 400 < text.count(FFFD) <= 500


@given(st.text())
def test_windows_agree_with_bytes_on_text(fake_tokenizer: Tokenizer, text: str) -> None:
    """The general way stands beside the exact one; on real text they give the same."""
    windows = WindowTextStream(fake_tokenizer._decode_all, [])
    output = fake_tokenizer.encode(text)

    assert text == "".join([windows.push(token_id) for token_id in output] + [windows.flush()])


def test_cost_of_a_token_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Fifty thousand tokens take well under the time that decoding all of them anew would."""
    tokenizer = sentence_piece_tokenizer(tmp_path)
    detokenizer = IncrementalDetokenizer(tokenizer, [], skip_special_tokens=True)
    started = time.perf_counter()

    for _ in range(50_000):
        detokenizer.push(258)

    assert time.perf_counter() - started < 15
