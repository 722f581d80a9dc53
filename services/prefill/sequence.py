"""One prompt on its way through the prefill worker."""

import asyncio
import time
from dataclasses import dataclass, field

from slipstream.shared.messages.jobs import PrefillJob
from slipstream.shared.model.sampling import SampledToken, Sampler
from slipstream.shared.worker.leased_blocks import LeasedBlocks
from slipstream.shared.worker.report_book import Attempt


@dataclass(eq=False)
class PrefillSequence:
    """
    A job with its lease and how far it is.

    `token_ids` are prompt and tokens emitted by earlier attempts: all of them need KV, which the
    first `num_computed_tokens` have, at the beginning those found in the prefix cache.
    """

    job: PrefillJob
    leased: LeasedBlocks
    sampler: Sampler
    token_ids: list[int]
    num_computed_tokens: int
    num_committed_tokens: int = 0  # in whole blocks, those shared from the beginning included
    num_chunks: int = 0
    started_at: float = field(default_factory=time.monotonic)
    first_token: SampledToken | None = None
    is_cancelled: bool = False
    error: Exception | None = None
    progress: asyncio.Event = field(
        default_factory=asyncio.Event
    )  # a chunk was computed, or the end
    is_retired: bool = False  # no step will ever touch its blocks again

    def __post_init__(self) -> None:
        self.num_committed_tokens = self.leased.num_cached_in_blocks

    @property
    def attempt(self) -> Attempt:
        """The key of the sequence."""
        return (self.job.request_id, self.job.attempt)

    @property
    def num_room_tokens(self) -> int:
        """Tokens that can be computed now: those left, as far as there are blocks."""
        end = min(len(self.token_ids), self.leased.num_slots)
        return max(0, end - self.num_computed_tokens)

    @property
    def is_able(self) -> bool:
        """A step can compute some of it."""
        return not self.is_done and self.num_room_tokens > 0

    @property
    def is_done(self) -> bool:
        """Nothing more is to be computed here."""
        return self.first_token is not None or self.is_cancelled or self.error is not None
