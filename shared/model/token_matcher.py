"""Matchers of llguidance over a model's tokens. Loaded with the first constraint of a worker."""

from collections.abc import Sequence

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper

from slipstream.shared.errors import ConstraintError
from slipstream.shared.messages.sampling import Constraint
from slipstream.shared.model.constraint import Mask
from slipstream.shared.model.detokenizer import Vocabulary
from slipstream.shared.model.grammar import open_matcher, raise_error_of


def build_tokenizer(
    vocabulary: Vocabulary, vocab_size: int, eos_token_ids: Sequence[int]
) -> LLTokenizer:
    """Build the library's tree of a vocabulary. Raises ConstraintError."""
    if not eos_token_ids:
        raise ConstraintError("the model has no end-of-sequence token")
    tokens = _TokenBytes(vocabulary, vocab_size, eos_token_ids[0])
    return LLTokenizer(TokenizerWrapper(tokens), eos_token=list(eos_token_ids))


class TokenMatcher:
    """The `Matcher` of a constraint over a vocabulary."""

    def __init__(
        self,
        tokenizer: LLTokenizer,
        constraint: Constraint,
        vocab_size: int,
        eos_token_ids: Sequence[int],
    ) -> None:
        self._matcher = open_matcher(tokenizer, constraint)
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._has_ended = False  # by an end-of-sequence token

    @property
    def is_complete(self) -> bool:
        """The output matches, and no longer one would."""
        return self._has_ended or (self._matcher.is_stopped() and not self._matcher.is_error())

    def allowed(self) -> Mask:
        """Return which tokens may come next [vocab]. Raises ConstraintError."""
        if self.is_complete:
            mask = np.zeros(self._vocab_size, np.bool_)
            mask[self._eos_token_ids] = True
            return mask
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        raise_error_of(self._matcher)
        bits = np.unpackbits(packed, count=self._vocab_size, bitorder="little")
        return bits.view(np.bool_)

    def accept(self, token_id: int) -> None:
        """Go on behind a token. Raises ConstraintError for one that is not allowed."""
        if token_id in self._eos_token_ids:
            self._has_ended = True
            return
        if not self._matcher.consume_token(token_id):
            raise_error_of(self._matcher)
            raise ConstraintError(f"token {token_id} is not allowed by the constraint")


class _TokenBytes:
    """The vocabulary as the library reads it: no text ever becomes tokens here."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eos_token_id: int) -> None:
        token_ids = range(vocab_size)
        self.eos_token_id = eos_token_id
        self.tokens = [vocabulary.bytes_of(token_id) for token_id in token_ids]
        # A control token stands for no text, whatever its name looks like.
        self.special_token_ids = [
            token_id
            for token_id in token_ids
            if not vocabulary.is_visible(token_id, skip_special=True)
        ]

    def __call__(self, text: bytes) -> list[int]:
        raise AssertionError(f"nothing is to be tokenized, {len(text)} bytes were")
