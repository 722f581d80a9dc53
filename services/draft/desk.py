"""Who answers a draft worker's messages; here by n-grams, at once."""

from typing import Protocol

from slipstream.services.draft.proposer import Proposer
from slipstream.shared.config import DraftConfig
from slipstream.shared.messages.draft import DraftClose, DraftJob, DraftOpen, DraftTokens


class DraftDesk(Protocol):
    """Answers messages in the order in which they come."""

    @property
    def num_sequences(self) -> int:
        """Sequences known."""
        ...

    async def open(self, message: DraftOpen) -> None:
        """Begin with a sequence. Raises DraftMismatchError."""

    async def close(self, message: DraftClose) -> None:
        """Forget a sequence."""

    async def propose(self, job: DraftJob) -> DraftTokens:
        """Answer every want."""
        ...

    async def shut(self) -> None:
        """Let go of everything."""


class NgramDesk:
    """Looks n-grams up: microseconds, so on the event loop."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer

    @property
    def num_sequences(self) -> int:
        """Sequences known."""
        return self._proposer.num_sequences

    async def open(self, message: DraftOpen) -> None:
        """Begin with a sequence."""
        self._proposer.open(message)

    async def close(self, message: DraftClose) -> None:
        """Forget a sequence."""
        self._proposer.close(message)

    async def propose(self, job: DraftJob) -> DraftTokens:
        """Answer every want."""
        return self._proposer.propose(job)

    async def shut(self) -> None:
        """Nothing is held here that outlives the process."""


def open_desk(config: DraftConfig) -> DraftDesk:
    """Open what the configuration says. Raises ModelError, ConfigurationError. Blocks."""
    if config.draft_kind == "ngram":
        return NgramDesk(Proposer(config.min_ngram, config.max_ngram, config.max_num_sequences))
    # Imported here: n-grams need neither numpy nor the kernels.
    from slipstream.services.draft.model_desk import open_model_desk  # noqa: PLC0415 - needs numpy

    return open_model_desk(config)
