"""Which prompt rows a prefill step takes. Pure: no clock, no bus."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.services.prefill.sequence import PrefillSequence
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.worker.token_budget import share_budget


@dataclass(frozen=True)
class Chunk:
    """A sequence's part of a step."""

    sequence: PrefillSequence
    rows: SequenceRows

    @property
    def is_last(self) -> bool:
        """The step yields this sequence's first token."""
        return self.rows.num_logit_rows > 0


def plan(sequences: Sequence[PrefillSequence], token_budget: int) -> list[Chunk]:
    """Pack chunks of up to `token_budget` rows in all; a short prompt passes a long one."""
    waiting = [sequence for sequence in sequences if not sequence.is_done]
    needs = [len(each.token_ids) - each.num_computed_tokens for each in waiting]
    shares = share_budget(needs, token_budget)
    return [
        _chunk(sequence, share)
        for sequence, share in zip(waiting, shares, strict=True)
        if share > 0
    ]


def _chunk(sequence: PrefillSequence, num_rows: int) -> Chunk:
    end = sequence.num_computed_tokens + num_rows
    is_last = end == len(sequence.token_ids)
    return Chunk(
        sequence,
        SequenceRows(
            token_ids=sequence.token_ids[:end],
            num_computed_tokens=sequence.num_computed_tokens,
            num_rows=num_rows,
            block_table=sequence.leased.blocks.block_ids,
            num_logit_rows=1 if is_last else 0,
        ),
    )
