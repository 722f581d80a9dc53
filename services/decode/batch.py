"""Which rows a step takes: decode rows with their drafts first, then prompt chunks. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.services.decode.sequence import DecodeSequence, num_tested
from slipstream.services.decode.verify import verify
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.messages.sampling import TokenLogprobs
from slipstream.shared.model.row_passes import Logits, Peak, row_passes
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.model.sampling import SampledToken, raw_logprobs
from slipstream.shared.worker.chunks import PromptBudget, Waiting, share
from slipstream.shared.worker.report_book import Attempt
from slipstream.shared.worker.step_cost import Prompts, Streams, prompts_in, streams_in

# A row of logits takes 200 kB with a vocabulary of 50,000.
_MAX_SCORED_ROWS = 64

Proposals = Mapping[Attempt, Sequence[int]]


@dataclass(eq=False)
class Part:
    """A sequence's part of a step, and after the step its result."""

    sequence: DecodeSequence
    rows: SequenceRows
    draft_token_ids: Sequence[int] = ()
    sampled: Sequence[SampledToken] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    error: Exception | None = None
    is_stream: bool = False  # it decodes; else it is a prompt, or a chunk of one

    @property
    def num_sampled_rows(self) -> int:
        """The last rows, from which tokens are chosen: of a prompt the one that ends it."""
        if self.is_stream:
            return self.rows.num_logit_rows
        return int(self.rows.context_len == len(self.sequence.token_ids))

    @property
    def num_drafts(self) -> tuple[int, int, int]:
        """Draft tokens that the step verified: proposed, tested, accepted."""
        num_proposed, num_accepted = len(self.draft_token_ids), len(self.sampled) - 1
        if not num_proposed or num_accepted < 0:
            return (0, 0, 0)
        return (num_proposed, num_tested(num_proposed, num_accepted), num_accepted)


# What the streams of a step leave for prompts; None: nothing.
Budget = Callable[[Streams], PromptBudget | None]


def plan(
    ready: Sequence[DecodeSequence], proposals: Proposals, budget: Budget, block_size: int
) -> list[Part]:
    """
    Pack the rows of one step. Sequences come with the blocks they need; drafts shrink to fit.

    Running streams always have their row; prompts share what the budget leaves.
    """
    decoding = [sequence for sequence in ready if sequence.is_decoding]
    prompts = [sequence for sequence in ready if sequence.num_pending_tokens > 1]
    parts = [_decode_part(each, proposals.get(each.attempt, ()), block_size) for each in decoding]
    left = budget(shape_of(parts)[0]) if prompts else None
    if left is None:
        return parts
    waiting = [
        Waiting(each.num_computed_tokens, each.num_room_tokens(block_size)) for each in prompts
    ]
    return parts + [
        _prompt_part(sequence, num_rows)
        for sequence, num_rows in zip(prompts, share(waiting, left), strict=True)
        if num_rows > 0
    ]


def shape_of(parts: Sequence[Part]) -> tuple[Streams, Prompts]:
    """Return what a step costs by: the rows of its streams, and those of its prompts."""
    return (
        streams_in([part.rows for part in parts if part.is_stream]),
        prompts_in([part.rows for part in parts if not part.is_stream]),
    )


def max_num_drafts(sequence: DecodeSequence, limit: int) -> int:
    """Return how many draft tokens can still be of use before the length or context ends."""
    wanted = sequence.job.sampling.num_speculative_tokens
    num_left = sequence.job.sampling.max_tokens - len(sequence.log.token_ids)
    num_left = min(num_left, sequence.max_num_tokens - len(sequence.token_ids))
    return max(0, min(limit if wanted is None else wanted, limit, num_left - 1))


def apply(part: Part) -> None:
    """Take the sampled tokens over: KV is valid up to the last accepted draft, never beyond."""
    sequence = part.sequence
    is_decode = sequence.is_decoding
    if not is_decode or sequence.num_computed_tokens < len(sequence.job.prompt_token_ids):
        sequence.num_chunks += 1
    sequence.prompt_logprobs += part.prompt_logprobs
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
    part.prompt_logprobs = _score_prompt(part, logits, peaks)
    if num_rows := part.num_sampled_rows:
        sampler = part.sequence.sampler
        assert sampler is not None, "made before the first step"
        rows, of_rows = logits[-num_rows:], peaks[-num_rows:]
        part.sampled = verify(sampler, rows, of_rows, part.draft_token_ids)


def _score_prompt(part: Part, logits: Logits, peaks: Sequence[Peak]) -> list[TokenLogprobs]:
    """Return the logprobs of the prompt's tokens that follow the rows of a chunk."""
    sequence = part.sequence
    first = part.rows.num_computed_tokens + 1
    # None of what was said already: output of earlier attempts may be computed with the prompt.
    token_ids = sequence.token_ids[first : first + sequence.num_unscored_tokens]
    num_top = sequence.job.sampling.num_prompt_logprobs or 0
    return [
        raw_logprobs(row, token_id, num_top, peak)
        for row, token_id, peak in zip(logits, token_ids, peaks, strict=False)
    ]


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
    return Part(sequence, rows, draft, is_stream=True)


def _prompt_part(sequence: DecodeSequence, num_rows: int) -> Part:
    if sequence.num_unscored_tokens > 0:
        num_rows = min(num_rows, _MAX_SCORED_ROWS)
    end = sequence.num_computed_tokens + num_rows
    is_last = end == len(sequence.token_ids)
    rows = SequenceRows(
        token_ids=sequence.token_ids[:end],
        num_computed_tokens=sequence.num_computed_tokens,
        num_rows=num_rows,
        block_table=sequence.block_ids,
        num_logit_rows=num_rows if sequence.num_unscored_tokens > 0 else int(is_last),
    )
    return Part(sequence, rows)
