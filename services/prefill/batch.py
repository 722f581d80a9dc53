"""Which prompt rows a prefill step takes. Pure: no clock, no bus."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.services.prefill.sequence import PrefillSequence
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.worker.chunks import PromptBudget, Waiting, share


@dataclass(frozen=True)
class Chunk:
    """A sequence's part of a step."""

    sequence: PrefillSequence
    rows: SequenceRows

    @property
    def is_last(self) -> bool:
        """The step yields this sequence's first token."""
        return self.rows.num_logit_rows > 0


def plan(sequences: Sequence[PrefillSequence], budget: PromptBudget) -> list[Chunk]:
    """Pack the chunks of a step: the waiting prompts share its budget."""
    able = [each for each in sequences if each.is_able]
    waiting = [Waiting(each.num_computed_tokens, each.num_room_tokens) for each in able]
    return [
        _chunk(sequence, num_rows)
        for sequence, num_rows in zip(able, share(waiting, budget), strict=True)
        if num_rows > 0
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
            block_table=sequence.leased.block_ids,
            num_logit_rows=1 if is_last else 0,
        ),
    )
