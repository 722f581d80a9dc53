"""Tell control tokens that a chat template writes from the same characters in a message."""

import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from slipstream.shared.errors import InvalidRequestError

_MAX_DEPTH = 32


class ControlTokens:
    """The control tokens of a vocabulary, found in text as the tokenizer finds them."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder().items()
        tokens = [(token, token_id) for token_id, token in added if token.special and token.content]
        # Where one begins another, the tokenizer takes the longer.
        tokens.sort(key=lambda pair: len(pair[0].content), reverse=True)
        self._ids = {token.content: token_id for token, token_id in tokens}
        words = [re.escape(token.content) for token, _ in tokens] or [r"(?!)"]
        self.in_content = re.compile("|".join(words))
        rendered = [_pattern(token) for token, _ in tokens] or [r"(?!)"]
        self._in_rendered = re.compile("|".join(rendered))
        self._beginnings = {word[:end] for word in self._ids for end in range(1, len(word))}
        self._max_length = max(map(len, self._ids), default=0)

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield stretches of ordinary text (with None) and control tokens with their ids."""
        end = 0
        for match in self._in_rendered.finditer(text):
            if match.start() > end:
                yield text[end : match.start()], None
            # The surrounding whitespace that some tokens swallow is no part of their name.
            word = match[0] if match[0] in self._ids else match[0].strip()
            yield match[0], self._ids[word]
            end = match.end()
        if end < len(text):
            yield text[end:], None

    def beginning_at_end_of(self, text: str) -> str:
        """Return the longest end of `text` that begins a control token, whitespace aside."""
        tail = text.rstrip()[-self._max_length :]
        ends = (tail[start:] for start in range(len(tail)))
        return next((end for end in ends if end in self._beginnings), "")


def _pattern(token: tokenizers.AddedToken) -> str:
    before = r"\s*" if token.lstrip else ""
    after = r"\s*" if token.rstrip else ""
    return before + re.escape(token.content) + after


class Marks:
    """
    Stand-ins for the control text of one request's messages.

    They pass through the template untouched, and can't be forged: each request has its own.
    """

    def __init__(self, control: ControlTokens) -> None:
        self._control = control
        self._nonce = secrets.token_hex(8)
        self._originals: list[str] = []
        self._marks: dict[str, str] = {}
        self._pattern = re.compile(f"\ue000{self._nonce}\\.([0-9]+)\ue001")

    @property
    def is_empty(self) -> bool:
        """Whether no message held control text."""
        return not self._originals

    def mark(self, value: Any, depth: int = 0) -> Any:  # JSON of any shape
        """Return the value with stand-ins in all its strings, the message's own keys left out."""
        if depth > _MAX_DEPTH:
            raise InvalidRequestError("messages", f"nested deeper than {_MAX_DEPTH}")
        match value:
            case str():
                return self._mark_text(value)
            case Mapping():
                return {
                    self._mark_text(key) if depth and isinstance(key, str) else key: self.mark(
                        item, depth + 1
                    )
                    for key, item in value.items()
                }
            case list() | tuple():
                return [self.mark(item, depth + 1) for item in value]
            case _:
                return value

    def restore(self, text: str) -> str:
        """Return the text with the stand-ins replaced by what they stand for."""
        return self._pattern.sub(lambda match: self._originals[int(match[1])], text)

    def _mark_text(self, text: str) -> str:
        marked = self._control.in_content.sub(lambda match: self._mark_for(match[0]), text)
        # What follows in the prompt might complete a token that begins here.
        if beginning := self._control.beginning_at_end_of(marked):
            start = marked.rindex(beginning)
            marked = marked[:start] + self._mark_for(beginning) + marked[start + len(beginning) :]
        return marked

    def _mark_for(self, original: str) -> str:
        if original not in self._marks:
            self._marks[original] = f"\ue000{self._nonce}.{len(self._originals)}\ue001"
            self._originals.append(original)
        return self._marks[original]
