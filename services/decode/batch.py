"""Which rows a step takes: decode rows with their drafts first, then prompt chunks. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.services.decode.sequence import DecodeSequence, num_tested
from slipstream.services.decode.verify import verify
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.model.row_passes import Logits, Peak, row_passes
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.model.sampling import SampledToken
from slipstream.shared.worker.report_book import Attempt

Proposals = Mapping[Attempt, Sequence[int]]


@dataclass(eq=False)
class Part:
    """A sequence's part of a step, and after the step its result."""

    sequence: DecodeSequence
    rows: SequenceRows
    draft_token_ids: Sequence[int] = ()
    sampled: Sequence[SampledToken] = ()
    error: Exception | None = None

    @property
    def num_drafts(self) -> tuple[int, int, int]:
        """Draft tokens that the step verified: proposed, tested, accepted."""
        num_proposed, num_accepted = len(self.draft_token_ids), len(self.sampled) - 1
        if not num_proposed or num_accepted < 0:
            return (0, 0, 0)
        return (num_proposed, num_tested(num_proposed, num_accepted), num_accepted)


def plan(
    ready: Sequence[DecodeSequence], proposals: Proposals, token_budget: int, block_size: int
) -> list[Part]:
    """
    Pack the rows of one step. Sequences come with the blocks they need; drafts shrink to fit.

    Running streams always have their row; prompts share what the budget leaves, oldest first.
    """
    decoding = [sequence for sequence in ready if sequence.num_pending_tokens == 1]
    prompts = [sequence for sequence in ready if sequence.num_pending_tokens > 1]
    parts = [_decode_part(each, proposals.get(each.attempt, ()), block_size) for each in decoding]
    budget = max(token_budget - sum(part.rows.num_rows for part in parts), 1)
    for sequence in prompts:
        if budget <= 0:
            break
        num_rows = min(sequence.num_pending_tokens, budget)
        budget -= num_rows
        parts.append(_prompt_part(sequence, num_rows))
    return parts


def max_num_drafts(sequence: DecodeSequence, limit: int) -> int:
    """Return how many draft tokens can still be of use before the length or context ends."""
    wanted = sequence.job.sampling.num_speculative_tokens
    num_left = sequence.job.sampling.max_tokens - len(sequence.log.token_ids)
    num_left = min(num_left, sequence.max_num_tokens - len(sequence.token_ids))
    return max(0, min(limit if wanted is None else wanted, limit, num_left - 1))


def apply(part: Part) -> None:
    """Take the sampled tokens over: KV is valid up to the last accepted draft, never beyond."""
    sequence = part.sequence
    is_decode = sequence.num_pending_tokens == 1
    if not is_decode or sequence.num_computed_tokens < len(sequence.job.prompt_token_ids):
        sequence.num_chunks += 1
    if not part.sampled:
        sequence.num_computed_tokens += part.rows.num_rows
        return
    if part.draft_token_ids:
        sequence.drafts.count(len(part.draft_token_ids), len(part.sampled) - 1)
    sequence.num_computed_tokens += len(part.sampled) if is_decode else part.rows.num_rows
    sequence.num_steps += 1
    for token in part.sampled:
        sequence.emit(token)
        if sequence.ending is not None:
            break


def sample(parts: Sequence[Part], logits: Logits) -> None:
    """
    Choose the tokens of a step's parts from their rows of logits. Runs on the engine's thread.

    One bad row is one bad request: its part keeps the error.
    """
    peaks = row_passes().peaks(logits)
    first = 0
    for part in parts:
        end = first + part.rows.num_logit_rows
        try:
            _sample_part(part, logits[first:end], peaks[first:end])
        except SlipstreamError as error:
            part.error = error
        first = end


def _sample_part(part: Part, logits: Logits, peaks: Sequence[Peak]) -> None:
    if peaks:
        part.sampled = verify(part.sequence.sampler, logits, peaks, part.draft_token_ids)


def _decode_part(sequence: DecodeSequence, draft: Sequence[int], block_size: int) -> Part:
    num_free_slots = len(sequence.block_ids) * block_size - len(sequence.token_ids)
    draft = draft[: max(0, num_free_slots)]
    rows = SequenceRows(
        token_ids=[*sequence.token_ids, *draft],
        num_computed_tokens=sequence.num_computed_tokens,
        num_rows=1 + len(draft),
        block_table=sequence.block_ids,
        num_logit_rows=1 + len(draft),
    )
    return Part(sequence, rows, draft)


def _prompt_part(sequence: DecodeSequence, num_rows: int) -> Part:
    end = sequence.num_computed_tokens + num_rows
    rows = SequenceRows(
        token_ids=sequence.token_ids[:end],
        num_computed_tokens=sequence.num_computed_tokens,
        num_rows=num_rows,
        block_table=sequence.block_ids,
        num_logit_rows=1 if end == len(sequence.token_ids) else 0,
    )
    return Part(sequence, rows)
