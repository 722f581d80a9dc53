"""The matchers of a process; what they need is loaded with the first."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from slipstream.shared.messages.sampling import Constraint
from slipstream.shared.model.constraint import Matcher
from slipstream.shared.model.detokenizer import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLTokenizer


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
        # Imported here: the library takes 8 MB and 50 ms, which a worker without constraints saves.
        from slipstream.shared.model.token_matcher import (  # noqa: PLC0415 - 8 MB that most processes never need
            TokenMatcher,
            build_tokenizer,
        )

        with self._lock:
            if self._tokenizer is None:
                vocabulary = self._open_vocabulary()
                self._tokenizer = build_tokenizer(vocabulary, self._vocab_size, self._eos_token_ids)
        return TokenMatcher(self._tokenizer, constraint, self._vocab_size, self._eos_token_ids)
