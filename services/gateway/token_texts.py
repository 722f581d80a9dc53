"""What single tokens say, for logprobs: text, bytes, and where each begins."""

import codecs
from collections.abc import Sequence

from slipstream.services.gateway.shapes import (
    ChatLogprob,
    ChatLogprobs,
    TextLogprobs,
    TopLogprob,
)
from slipstream.shared.messages.sampling import TokenLogprobs
from slipstream.shared.model.tokenizer import Tokenizer

_LEAST = -9999.0  # what OpenAI says of a token that can't come: JSON has no infinity


class TokenTexts:
    """The words of a vocabulary, each looked up once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes: dict[int, bytes] = {}

    def bytes_of(self, token_id: int) -> bytes:
        """Return what a token stands for; alone it may be half of a character."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._look_up(token_id)
        return found

    def text_of(self, token_id: int) -> str:
        """Return a token as text."""
        return self.bytes_of(token_id).decode(errors="replace")

    def chat(self, entries: Sequence[TokenLogprobs]) -> ChatLogprobs:
        """Return logprobs as chats have them."""
        return ChatLogprobs([self._chat_entry(entry) for entry in entries])

    def text(self, entries: Sequence[TokenLogprobs], offset: int) -> TextLogprobs:
        """Return logprobs as completions have them, the first token at an offset in the text."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        found = TextLogprobs([], [], [], [])
        for entry in entries:
            self._add(found, entry.token_id, entry, offset)
            offset += len(decoder.decode(self._visible(entry.token_id)))
        return found

    def echoed(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]
    ) -> TextLogprobs:
        """Return the logprobs of a prompt; nothing comes before its first token."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        found, offset = TextLogprobs([], [], [], []), 0
        for token_id, entry in zip(token_ids, entries, strict=False):
            self._add(found, token_id, entry, offset)
            offset += len(decoder.decode(self.bytes_of(token_id)))
        return found

    def _add(
        self, columns: TextLogprobs, token_id: int, entry: TokenLogprobs | None, offset: int
    ) -> None:
        columns.tokens.append(self.text_of(token_id))
        columns.text_offset.append(offset)
        columns.token_logprobs.append(None if entry is None else _finite(entry.logprob))
        columns.top_logprobs.append(None if entry is None else self._top(entry))

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        top = {
            self.text_of(token_id): _finite(logprob)
            for token_id, logprob in zip(entry.top_token_ids, entry.top_logprobs, strict=True)
        }
        # The token that came is there too, whether or not it is one of the best.
        top.setdefault(self.text_of(entry.token_id), _finite(entry.logprob))
        return top

    def _chat_entry(self, entry: TokenLogprobs) -> ChatLogprob:
        return ChatLogprob(
            self.text_of(entry.token_id),
            _finite(entry.logprob),
            list(self.bytes_of(entry.token_id)),
            [
                TopLogprob(self.text_of(each), _finite(logprob), list(self.bytes_of(each)))
                for each, logprob in zip(entry.top_token_ids, entry.top_logprobs, strict=True)
            ],
        )

    def _visible(self, token_id: int) -> bytes:
        """Return what a token adds to the text: control tokens add nothing."""
        return b"" if self._tokenizer.is_special(token_id) else self.bytes_of(token_id)

    def _look_up(self, token_id: int) -> bytes:
        if self._tokenizer.is_byte_level and not self._tokenizer.is_special(token_id):
            return self._tokenizer.bytes_of(token_id)
        return self._tokenizer.decode([token_id], skip_special_tokens=False).encode()


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
