"""Small vocabularies, and matchers over them."""

from collections.abc import Sequence

from slipstream.shared.messages.sampling import Constraint
from slipstream.shared.model.constraint import Matcher
from slipstream.shared.model.detokenizer import ByteTextStream, TextStream
from slipstream.shared.model.matchers import Matchers

CONTROL = b"<|end|>"


class SmallVocabulary:
    """Tokens of bytes; those of `CONTROL` are control tokens."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = list(tokens)

    @property
    def eos_token_ids(self) -> list[int]:
        return [i for i, token in enumerate(self.tokens) if token == CONTROL]

    @property
    def max_token_id(self) -> int:
        return len(self.tokens) - 1

    def bytes_of(self, token_id: int) -> bytes:
        return self.tokens[token_id] if token_id < len(self.tokens) else b""

    def is_visible(self, token_id: int, *, skip_special: bool) -> bool:
        return token_id < len(self.tokens) and not (
            skip_special and self.tokens[token_id] == CONTROL
        )

    def open_text_stream(
        self,
        prompt_token_ids: Sequence[int],
        *,
        skip_special: bool,  # noqa: ARG002 - a vocabulary has it
    ) -> TextStream:
        return ByteTextStream(self.bytes_of, list(prompt_token_ids))

    def output_of(self, token_ids: Sequence[int]) -> bytes:
        """Return what tokens say, without control tokens."""
        return b"".join(self.tokens[i] for i in token_ids if self.tokens[i] != CONTROL)


def byte_vocabulary(*longer: bytes, num_eos: int = 1) -> SmallVocabulary:
    """Return every byte, some longer tokens, and end-of-sequence tokens behind them."""
    return SmallVocabulary(
        [*(bytes([value]) for value in range(256)), *longer, *[CONTROL] * num_eos]
    )


def matchers_of(vocabulary: SmallVocabulary, num_padding: int = 0) -> Matchers:
    vocab_size = len(vocabulary.tokens) + num_padding
    return Matchers(lambda: vocabulary, vocab_size, vocabulary.eos_token_ids)


def open_regex(vocabulary: SmallVocabulary, pattern: str) -> Matcher:
    return matchers_of(vocabulary).open(Constraint("regex", pattern))
