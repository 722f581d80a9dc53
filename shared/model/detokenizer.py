"""Text out of a growing list of tokens, whole characters only. Two ways behind one protocol."""

import codecs
from collections.abc import Callable
from typing import Protocol

_REPLACEMENT = "\ufffd"


class TextStream(Protocol):
    """What was pushed comes out as text once; `flush` gives what an ending stream still holds."""

    def push(self, token_id: int) -> str:
        """Return the characters that this token completes."""

    def flush(self) -> str:
        """Return what is held back, as the end of the stream leaves it."""


def _byte_of_character() -> dict[str, int]:
    """Invert the table of byte-level vocabularies: visible bytes stand for themselves."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    table = {chr(byte): byte for byte in visible}
    return table | {chr(256 + idx): byte for idx, byte in enumerate(hidden)}


_BYTE_OF_CHARACTER = _byte_of_character()


class ByteTextStream:
    """For byte-level vocabularies: the bytes of each token through an incremental UTF-8 decoder."""

    def __init__(self, token_of: Callable[[int], str | None], context: list[int]) -> None:
        """`context` is the end of the prompt: a character begun there may end in the output."""
        self._token_of = token_of
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

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._token_of(token_id)
        if token is None:
            return b""
        try:
            return bytes(_BYTE_OF_CHARACTER[character] for character in token)
        except KeyError:  # an added token, written out as it is
            return token.encode()


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
