"""
A draft model at work: proposals for many sequences at once, from KV of its own.

A round of proposals is as many steps of the model as the longest has tokens; each step runs all
sequences that still want one. Blocks are few: whoever asked longest ago loses its KV first, which
is computed again if it asks again.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from slipstream.shared.drafting.choice import choose
from slipstream.shared.drafting.confidence import Confidence
from slipstream.shared.drafting.sequence import Drafted, DraftSequence
from slipstream.shared.kv.layout import BLOCK_SIZE
from slipstream.shared.model.row_passes import Logits, TokenIds, row_passes
from slipstream.shared.model.runner import ModelRunner, SequenceRows

_FIRST_BLOCK = 1  # behind the null block
# Tokens that the first step of a proposal may have to compute: a step's worth of accepted ones.
_MAX_PENDING = 32


@dataclass(frozen=True, slots=True)
class Want:
    """A sequence that is to be drafted for: as far as its drafts are likely enough."""

    sequence: DraftSequence
    max_num_tokens: int
    # Of all its drafts to be accepted; behind less likely ones nothing is drafted.
    least_chance: float = 0.0


@dataclass(slots=True)
class Draft:
    """What is proposed for a sequence, and the chance of each token to be reached and accepted."""

    want: Want
    token_ids: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    drafted: list[Drafted] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        """Another token is wanted."""
        chance = self.chances[-1] if self.chances else 1.0
        is_long = len(self.token_ids) >= self.want.max_num_tokens
        return not is_long and chance > self.want.least_chance


class DraftEngine:
    """Owns the blocks of a draft model, and what its confidence is worth."""

    def __init__(
        self,
        runner: ModelRunner,
        num_blocks: int,
        max_context_length: int,
        known_token_ids: TokenIds | None = None,
    ) -> None:
        """`known_token_ids` are what the rows of logits stand for; None: every token."""
        self.runner = runner
        self._max_context_length = max_context_length
        self._known = np.arange(runner.vocab_size) if known_token_ids is None else known_token_ids
        self._free_blocks = list(range(_FIRST_BLOCK, num_blocks))
        self._recent: OrderedDict[DraftSequence, None] = OrderedDict()
        # What is drawn agrees less often than what is likeliest, at one probability.
        self._confidences = {True: Confidence(), False: Confidence()}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free_blocks)

    def extend(self, sequence: DraftSequence, token_ids: Sequence[int]) -> list[bool]:
        """Append the target's tokens; return which drafts they accept, and the first they don't."""
        judged = sequence.extend(token_ids)
        confidence = self._confidence_of(sequence)
        for draft, is_accepted in judged:
            confidence.saw(draft.probability, is_accepted=is_accepted)
        return [is_accepted for _, is_accepted in judged]

    def forget(self, sequence: DraftSequence) -> None:
        """Let a sequence go."""
        self._recent.pop(sequence, None)
        self._free_blocks += sequence.forget_kv()

    def catch_up(self, sequences: Sequence[DraftSequence], max_num_rows: int) -> int:
        """
        Compute tokens that have no KV yet, but for each one's last; return how many.

        They are a prompt, or what came while nobody drafted.
        """
        batch: list[tuple[DraftSequence, SequenceRows]] = []
        num_left = max_num_rows
        for sequence in sequences:
            num_rows = min(sequence.num_pending - 1, num_left)
            end = len(sequence.token_ids) - sequence.num_pending + num_rows
            if num_rows > 0 and self._has_room(sequence, end, [each for each, _ in batch]):
                batch.append((sequence, sequence.chunk(num_rows)))
                num_left -= num_rows
        self._forward(batch)
        return max_num_rows - num_left

    def propose(self, wants: Sequence[Want]) -> list[Draft]:
        """
        Draft for sequences that have caught up; for others, or without blocks, nothing.

        What was drafted before and still follows the tokens is the beginning of what would be
        drafted now, so it is.
        """
        drafts = [Draft(want) for want in wants]
        going_on: list[Draft] = []
        for draft in drafts:
            if self._can_draft(draft.want, [each.want.sequence for each in going_on]):
                going_on.append(draft)
        for draft in going_on:
            for drafted in draft.want.sequence.drafted:
                self._append(draft, drafted)
        while going_on := [draft for draft in going_on if draft.goes_on]:
            self._step(going_on)
        for draft in drafts:
            sequence = draft.want.sequence
            sequence.drafted, sequence.drafted_at = draft.drafted, len(sequence.token_ids)
        return drafts

    def close(self) -> None:
        """Let go of threads and memory."""
        self.runner.close()

    def _step(self, drafts: Sequence[Draft]) -> None:
        sequences = [draft.want.sequence for draft in drafts]
        rows = [
            sequence.rows(draft.token_ids)
            for sequence, draft in zip(sequences, drafts, strict=True)
        ]
        logits = self._forward(list(zip(sequences, rows, strict=True)))
        for draft, row, peak in zip(drafts, logits, row_passes().peaks(logits), strict=True):
            sequence = draft.want.sequence
            position = len(sequence.token_ids) + len(draft.token_ids) - sequence.num_prompt_tokens
            chosen = choose(row, peak, sequence.sampling, position, self._known)
            self._append(draft, Drafted(int(self._known[chosen.place]), chosen.probability))

    def _append(self, draft: Draft, drafted: Drafted) -> None:
        if len(draft.token_ids) == draft.want.max_num_tokens:
            return
        before = draft.chances[-1] if draft.chances else 1.0
        chance = self._confidence_of(draft.want.sequence).chance(drafted.probability)
        draft.token_ids.append(drafted.token_id)
        draft.chances.append(before * chance)
        draft.drafted.append(drafted)

    def _forward(self, batch: Sequence[tuple[DraftSequence, SequenceRows]]) -> Logits:
        if not batch:
            return np.empty((0, len(self._known)), np.float32)
        logits = self.runner.forward([rows for _, rows in batch])
        for sequence, rows in batch:
            sequence.computed(rows)
        return logits

    def _can_draft(self, want: Want, others: Sequence[DraftSequence]) -> bool:
        sequence = want.sequence
        if want.max_num_tokens == 0 or sequence.num_pending > _MAX_PENDING:
            return False
        num_tokens = len(sequence.token_ids) + want.max_num_tokens - 1
        return self._has_room(sequence, num_tokens, others)

    def _has_room(
        self, sequence: DraftSequence, num_tokens: int, others: Sequence[DraftSequence]
    ) -> bool:
        """Get blocks for so many positions, if need be from sequences but for these others."""
        if num_tokens > self._max_context_length:
            return False
        for each in (*others, sequence):
            self._recent[each] = None
            self._recent.move_to_end(each)
        num_missing = -(-num_tokens // BLOCK_SIZE) - len(sequence.blocks)
        while num_missing > len(self._free_blocks):
            oldest = next(iter(self._recent))
            if oldest is sequence or oldest in others:
                return False
            self.forget(oldest)
        if num_missing > 0:
            sequence.blocks += self._free_blocks[-num_missing:]
            del self._free_blocks[-num_missing:]
        return True

    def _confidence_of(self, sequence: DraftSequence) -> Confidence:
        sampling = sequence.sampling
        return self._confidences[sampling is not None and sampling.temperature > 0.0]
