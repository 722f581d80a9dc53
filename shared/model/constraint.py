"""
Which tokens a constraint allows next: a mask over the vocabulary, position by position.

A mask is a function of constraint, vocabulary and the output so far, and of nothing else: tokens
whose bytes some matching answer goes on with, and end-of-sequence once the output matches.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from slipstream.shared.errors import ConstraintError
from slipstream.shared.messages.sampling import Constraint
from slipstream.shared.model.detokenizer import Vocabulary
from slipstream.shared.model.grammar import open_matcher, raise_error_of

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Mask = npt.NDArray[np.bool_]


class Matcher(Protocol):
    """Follows the output of one sequence."""

    @property
    def is_complete(self) -> bool:
        """The output matches, and no longer one would."""
        ...

    def allowed(self) -> Mask:
        """Return which tokens may come next [vocab]. Raises ConstraintError."""
        ...

    def accept(self, token_id: int) -> None:
        """Go on behind a token. Raises ConstraintError for one that is not allowed."""
        ...


class Matchers:
    """
    Makes the matchers of a process, which share the library's tree of the vocabulary.

    The tree is built with the first matcher: 150 ms and 22 MB for 50,000 tokens. Safe to share
    between threads; a matcher is used by one at a time.
    """

    def __init__(
        self,
        open_vocabulary: Callable[[], Vocabulary],
        vocab_size: int,
        eos_token_ids: Sequence[int],
    ) -> None:
        self._open_vocabulary = open_vocabulary
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None

    def open(self, constraint: Constraint) -> Matcher:
        """Return a matcher at the start of an output. Blocks. Raises ConstraintError."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._build_tokenizer()
        matcher = open_matcher(self._tokenizer, constraint)
        return _TokenMatcher(matcher, self._vocab_size, self._eos_token_ids)

    def _build_tokenizer(self) -> "LLTokenizer":
        from llguidance import LLTokenizer, TokenizerWrapper  # noqa: PLC0415 - as in grammar.py

        if not self._eos_token_ids:
            raise ConstraintError("the model has no end-of-sequence token")
        vocabulary = _TokenBytes(self._open_vocabulary(), self._vocab_size, self._eos_token_ids[0])
        return LLTokenizer(TokenizerWrapper(vocabulary), eos_token=self._eos_token_ids)


class _TokenMatcher:
    def __init__(self, matcher: "LLMatcher", vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._has_ended = False  # by an end-of-sequence token

    @property
    def is_complete(self) -> bool:
        return self._has_ended or (self._matcher.is_stopped() and not self._matcher.is_error())

    def allowed(self) -> Mask:
        if self.is_complete:
            mask = np.zeros(self._vocab_size, np.bool_)
            mask[self._eos_token_ids] = True
            return mask
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        raise_error_of(self._matcher)
        bits = np.unpackbits(packed, count=self._vocab_size, bitorder="little")
        return bits.view(np.bool_)

    def accept(self, token_id: int) -> None:
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
