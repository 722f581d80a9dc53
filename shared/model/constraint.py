"""
Which tokens a constraint allows next: a mask over the vocabulary, position by position.

A mask is a function of constraint, vocabulary and the output so far, and of nothing else: tokens
whose bytes some matching answer goes on with, and end-of-sequence once the output matches.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

# Where the grammar library takes its own options, in the schema itself; no client may.
OPTIONS_KEY = "x-guidance"


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
