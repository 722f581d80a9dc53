"""One sequence on the decode worker."""

import asyncio
from dataclasses import dataclass, field

from slipstream.services.decode.draft_lengths import Acceptances
from slipstream.services.decode.stopping import Ending, StopChecker
from slipstream.services.decode.stream import TokenLog
from slipstream.shared.ids import LeaseId
from slipstream.shared.messages.common import Usage
from slipstream.shared.messages.jobs import DecodeJob
from slipstream.shared.messages.sampling import TokenLogprobs
from slipstream.shared.model.sampling import SampledToken, Sampler
from slipstream.shared.telemetry.spans import Span
from slipstream.shared.worker.deadline import Deadline
from slipstream.shared.worker.leased_blocks import LeasedBlocks
from slipstream.shared.worker.report_book import Attempt


def num_tested(num_drafted: int, num_accepted: int) -> int:
    """Return how many drafts the target saw: none of what follows the first rejection."""
    return min(num_drafted, num_accepted + 1)


@dataclass(slots=True)
class DraftCounts:
    """What drafting brought."""

    num_drafted: int = 0
    num_tested: int = 0
    num_accepted: int = 0
    num_steps: int = 0  # that verified a proposal
    num_steps_unused: int = 0  # there were drafts, which would not have paid
    acceptances: Acceptances | None = None  # None where nobody drafts

    def count(self, num_drafted: int, num_accepted: int) -> None:
        """Count one verified proposal."""
        self.num_drafted += num_drafted
        self.num_tested += num_tested(num_drafted, num_accepted)
        self.num_accepted += num_accepted
        self.num_steps += 1


@dataclass(eq=False)
class DecodeSequence:
    """
    A job with its tokens, blocks, sampler and stream.

    Positions [0, num_computed_tokens) of `token_ids` hold KV. One token more: the sequence decodes.
    Several more: a prompt (or, after a preemption, prompt and output) is to be computed here.
    """

    job: DecodeJob
    token_ids: list[int]
    sampler: Sampler | None  # None until the sequence is where earlier attempts left it
    checker: StopChecker
    log: TokenLog
    deadline: Deadline
    span: Span
    max_num_tokens: int  # of prompt and output together
    lease_id: LeaseId | None = None
    block_ids: list[int] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    leased: LeasedBlocks | None = None  # those of a prompt computed here, the same table
    num_computed_tokens: int = 0
    num_prefill_tokens: int = 0  # of them are computed here at once: a prompt, or after preemption
    num_committed_tokens: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    num_chunks: int = 0  # of a prompt computed here: none of one that was handed over
    num_cached_tokens: int = 0  # of the prompt, when this attempt began
    prefill_ms: float = 0.0
    hand_over_ms: float = 0.0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # from the second token on
    drafts: DraftCounts = field(default_factory=DraftCounts)
    ending: Ending | None = None
    error: Exception | None = None
    cancel_reason: str | None = None
    committing: asyncio.Lock = field(default_factory=asyncio.Lock)
    retired: asyncio.Event = field(default_factory=asyncio.Event)  # no step touches it any more

    @property
    def attempt(self) -> Attempt:
        """The key of the sequence."""
        return (self.job.request_id, self.job.attempt)

    @property
    def arrived_at(self) -> float:
        """When the scheduler received the request, by this process's monotonic clock."""
        return self.log.received_at - self.job.elapsed_ms / 1000

    @property
    def num_pending_tokens(self) -> int:
        """Tokens without KV."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_decoding(self) -> bool:
        """All but the last token have KV: it is no prompt any more."""
        return self.num_pending_tokens == 1

    @property
    def num_reserved_blocks(self) -> int:
        """Blocks that its prompt has been promised and that come with the commits."""
        return self.leased.num_reserved if self.leased is not None else 0

    def num_room_tokens(self, block_size: int) -> int:
        """Return how many of them can be computed now: as far as there are blocks."""
        num_slots = len(self.block_ids) * block_size
        return max(0, min(len(self.token_ids), num_slots) - self.num_computed_tokens)

    @property
    def num_unscored_tokens(self) -> int:
        """Tokens of the prompt whose logprobs are wanted and not there; the first has none."""
        if self.job.sampling.num_prompt_logprobs is None:
            return 0
        return len(self.job.prompt_token_ids) - 1 - len(self.prompt_logprobs)

    @property
    def is_over(self) -> bool:
        """Ended, failed or cancelled: it leaves the batch between two steps."""
        return self.ending is not None or self.error is not None or self.cancel_reason is not None

    def num_whole_tokens(self, block_size: int) -> int:
        """Return how many positions hold KV for good: in full blocks, of accepted tokens."""
        # A step may have computed drafts beyond the token that ended the sequence.
        num_valid = min(self.num_computed_tokens, len(self.token_ids))
        return num_valid // block_size * block_size

    def take_lease(self, leased: LeasedBlocks) -> None:
        """Begin on leased blocks; what the prefix cache had of the tokens needs no computing."""
        self.lease_id = leased.lease_id
        self.block_ids = leased.block_ids
        self.generations = leased.generations
        self.leased = leased
        self.num_computed_tokens = leased.num_cached_tokens
        self.num_committed_tokens = leased.num_cached_in_blocks
        self.num_prefill_tokens = len(self.token_ids)

    def drop_blocks(self) -> None:
        """Forget all KV: the lease ends, and what isn't cached by then is computed anew."""
        self.lease_id = None
        self.block_ids = []
        self.generations = []
        self.leased = None
        self.num_computed_tokens = 0
        self.num_committed_tokens = 0

    def note_cached(self, num_tokens: int) -> None:
        """Note how much of the prompt was cached, which output of earlier attempts is not."""
        self.num_cached_tokens = min(num_tokens, len(self.job.prompt_token_ids) - 1)

    def emit(self, sampled: SampledToken) -> None:
        """Walk one new token through the finish logic into the stream."""
        self.token_ids.append(sampled.token_id)
        text, self.ending = self.checker.push(sampled.token_id, is_last=sampled.is_last)
        self.log.append(sampled.token_id, text, sampled.logprobs)

    def usage(self) -> Usage:
        """Return the counts so far."""
        return Usage(
            num_prompt_tokens=len(self.job.prompt_token_ids),
            num_output_tokens=len(self.log.token_ids),
            num_cached_tokens=self.num_cached_tokens,
            num_drafted_tokens=self.drafts.num_drafted,
            num_tested_tokens=self.drafts.num_tested,
            num_accepted_tokens=self.drafts.num_accepted,
            num_steps=self.num_steps,
            num_preemptions=self.num_preemptions,
            num_draft_steps=self.drafts.num_steps,
        )
