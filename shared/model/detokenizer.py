"""Text out of a growing list of tokens, whole characters only. Two ways behind one protocol."""

import codecs
import itertools
from collections.abc import Callable, Sequence
from typing import Protocol

_REPLACEMENT = "\ufffd"

# A character of UTF-8 has at most four bytes, each at most one token; twice that for certainty.
_NUM_CONTEXT_TOKENS = 8


class TextStream(Protocol):
    """What was pushed comes out as text once; `flush` gives what an ending stream still holds."""

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes."""

    def flush(self) -> str:
        """Return what is held back, as the end of the stream leaves it."""


class Vocabulary(Protocol):
    """What tokens say: all that it takes to turn them into text."""

    @property
    def max_token_id(self) -> int:
        """The last id; those before it may have gaps."""

    def is_visible(self, token_id: int, *, skip_special: bool) -> bool:
        """Say whether the token adds to the text: it exists and is no skipped control token."""

    def bytes_of(self, token_id: int) -> bytes:
        """Return what a token of a byte-level vocabulary stands for, nothing if there is none."""

    def open_text_stream(
        self, prompt_token_ids: Sequence[int], *, skip_special: bool
    ) -> TextStream:
        """Return a stream of the text after the prompt; it must be pushed visible tokens only."""


class IncrementalDetokenizer:
    """
    The text of one request, a token at a time, in whole characters.

    All that `push` and `flush` return, joined, is the text of prompt and output without that of
    the prompt. A character that the prompt leaves unfinished is given by the token that ends it.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt_token_ids: Sequence[int],
        skip_special_tokens: bool,  # noqa: FBT001 - passed on from the sampling parameters
    ) -> None:
        self._vocabulary = vocabulary
        self._skip_special = skip_special_tokens
        self._stream = vocabulary.open_text_stream(
            prompt_token_ids, skip_special=skip_special_tokens
        )

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes: often one word, sometimes none."""
        if not self._vocabulary.is_visible(token_id, skip_special=self._skip_special):
            return ""
        return self._stream.push(token_id)

    def flush(self) -> str:
        """Return what is still held back: U+FFFD if the output ends inside a character."""
        return self._stream.flush()


def context_of(
    vocabulary: Vocabulary, prompt_token_ids: Sequence[int], *, skip_special: bool
) -> list[int]:
    """Return the last visible tokens of a prompt, in which a character may be unfinished."""
    visible = (
        token_id
        for token_id in reversed(prompt_token_ids)
        if vocabulary.is_visible(token_id, skip_special=skip_special)
    )
    return list(itertools.islice(visible, _NUM_CONTEXT_TOKENS))[::-1]


def _byte_of_character() -> dict[str, int]:
    """Invert the table of byte-level vocabularies: visible bytes stand for themselves."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    table = {chr(byte): byte for byte in visible}
    return table | {chr(256 + idx): byte for idx, byte in enumerate(hidden)}


_BYTE_OF_CHARACTER = _byte_of_character()


def bytes_of_token(token: str) -> bytes:
    """Return what a token of a byte-level vocabulary stands for."""
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:  # an added token, written out as it is
        return token.encode()


class ByteTextStream:
    """For byte-level vocabularies: the bytes of each token through an incremental UTF-8 decoder."""

    def __init__(self, bytes_of: Callable[[int], bytes], context: list[int]) -> None:
        """`context` is the end of the prompt: a character begun there may end in the output."""
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token_id in context:
            self._decoder.decode(self._bytes_of(token_id))
        # The prompt's own text already shows its unfinished character as U+FFFD.
        self._is_prompt_unfinished = self._decoder.getstate()[0] != b""

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes."""
        return self._without_prompt(self._decoder.decode(self._bytes_of(token_id)))

    def flush(self) -> str:
        """Return U+FFFD when the stream ends inside a character."""
        return self._without_prompt(self._decoder.decode(b"", final=True))

    def _without_prompt(self, text: str) -> str:
        if text and self._is_prompt_unfinished:
            self._is_prompt_unfinished = False
            return text.removeprefix(_REPLACEMENT)
        return text


class WindowTextStream:
    """
    For any vocabulary: decode the last tokens together and give out what is new.

    The window begins before the first token not yet given out, so that a decoder which treats the
    beginning of a text in its own way (SentencePiece drops a space) does so on known text.
    """

    # Three characters of four bytes, each byte a token: what is held back ends within this.
    _MAX_NUM_HELD = 12
    _NUM_CONTEXT_TOKENS = 4
    _MAX_NUM_TOKENS = 16

    def __init__(self, decode: Callable[[list[int]], str], context: list[int]) -> None:
        self._decode = decode
        self._window = list(context)
        self._num_given = len(decode(self._window))

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes."""
        self._window.append(token_id)
        text = self._decode(self._window)
        num_held = min(len(text) - len(text.rstrip(_REPLACEMENT)), self._MAX_NUM_HELD)
        new = self._take(text, len(text) - num_held)
        if len(self._window) >= 4 * self._MAX_NUM_TOKENS:
            # Bytes that are no text at all: nothing that follows can mend so long a run.
            new += self._take(text, len(text))
            self._cut(len(self._window) - self._NUM_CONTEXT_TOKENS)
        elif len(self._window) >= self._MAX_NUM_TOKENS and num_held == 0:
            self._cut(self._find_cut(text))
        return new

    def flush(self) -> str:
        """Return what is held back, U+FFFD where the stream ends inside a character."""
        text = self._decode(self._window)
        return self._take(text, len(text))

    def _take(self, text: str, end: int) -> str:
        new = text[self._num_given : end]
        self._num_given = max(self._num_given, end)
        return new

    def _find_cut(self, text: str) -> int:
        """Return where the window can begin without cutting a character of byte tokens."""
        latest = len(self._window) - self._NUM_CONTEXT_TOKENS
        starts = range(latest, 0, -1)
        return next((at for at in starts if text.endswith(self._decode(self._window[at:]))), 0)

    def _cut(self, start: int) -> None:
        self._window = self._window[start:]
        self._num_given = len(self._decode(self._window))
