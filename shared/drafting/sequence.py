"""What a draft model knows of one sequence: its tokens, and the KV in blocks of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.shared.messages.draft import DraftSampling
from slipstream.shared.model.runner import SequenceRows


@dataclass(frozen=True, slots=True)
class Drafted:
    """A token that was proposed, and how likely the draft thought it."""

    token_id: int
    probability: float


@dataclass(eq=False)
class DraftSequence:
    """
    Positions [0, num_computed) of `token_ids` hold KV, and so may drafts behind them.

    Rollback is a matter of lengths: KV counts as far as the tokens that it was computed from are
    those of the sequence.
    """

    sampling: DraftSampling | None = None
    num_prompt_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    drafted: list[Drafted] = field(default_factory=list)  # behind the first `drafted_at` tokens
    drafted_at: int = 0
    _kv_token_ids: list[int] = field(default_factory=list)
    _num_computed: int = 0

    @property
    def num_pending(self) -> int:
        """Tokens without KV, or one: the last one's row is needed, whatever is known of it."""
        return len(self.token_ids) - self._num_computed

    def extend(self, token_ids: Sequence[int]) -> list[tuple[Drafted, bool]]:
        """Append the target's tokens; return the drafts that they judge, and how."""
        first = len(self.token_ids)
        self.token_ids += token_ids
        self._num_computed = self._num_shared(self.token_ids)
        return self._judged(first)

    def chunk(self, num_rows: int) -> SequenceRows:
        """Return the next rows, of which no logits are wanted."""
        end = self._num_computed + num_rows
        return SequenceRows(self.token_ids[:end], self._num_computed, num_rows, self.blocks, 0)

    def rows(self, drafts: Sequence[int]) -> SequenceRows:
        """Return all rows that are missing up to the last of its drafts, from which one follows."""
        tokens = [*self.token_ids, *drafts]
        num_computed = self._num_shared(tokens)
        return SequenceRows(tokens, num_computed, len(tokens) - num_computed, self.blocks, 1)

    def computed(self, rows: SequenceRows) -> None:
        """Note that rows went through the model."""
        first = rows.num_computed_tokens
        self._kv_token_ids[first:] = rows.token_ids[first:]
        self._num_computed = self._num_shared(self.token_ids)

    def forget_kv(self) -> list[int]:
        """Give the blocks back: what they hold is computed again when it is wanted."""
        blocks, self.blocks = self.blocks, []
        self._kv_token_ids.clear()
        self._num_computed = 0
        return blocks

    def _num_shared(self, token_ids: Sequence[int]) -> int:
        """Return how many of the tokens have KV, the last one left out."""
        num_shared, limit = self._num_computed, min(len(self._kv_token_ids), len(token_ids) - 1)
        while num_shared < limit and self._kv_token_ids[num_shared] == token_ids[num_shared]:
            num_shared += 1
        return num_shared

    def _judged(self, first: int) -> list[tuple[Drafted, bool]]:
        if first != self.drafted_at:
            self.drafted = []
        judged = []
        for draft, token_id in zip(self.drafted, self.token_ids[first:], strict=False):
            is_accepted = draft.token_id == token_id
            judged.append((draft, is_accepted))
            if not is_accepted:
                break
        # What is left follows tokens that came as they were drafted, or nothing.
        is_right = all(is_accepted for _, is_accepted in judged)
        self.drafted = self.drafted[len(judged) :] if is_right and judged else []
        self.drafted_at = len(self.token_ids)
        return judged
