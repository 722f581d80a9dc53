"""Packing prompt rows into a step, whatever is waiting."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.services.prefill.batch import plan
from slipstream.services.prefill.sequence import PrefillSequence
from slipstream.shared.ids import LeaseId, RequestId, WorkerId
from slipstream.shared.messages.jobs import PrefillJob, ReplyTarget
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model.sampling import SampledToken, Sampler
from slipstream.shared.telemetry.context import SpanContext
from slipstream.shared.worker.chunks import PromptBudget
from slipstream.shared.worker.leased_blocks import LeasedBlocks

SPAN = SpanContext("1" * 32, "1" * 16)


def make_sequence(
    num_tokens: int, num_computed_tokens: int = 0, num_blocks: int = 100
) -> PrefillSequence:
    token_ids = list(range(num_tokens))
    sampling = SamplingParameters(seed=1)
    job = PrefillJob(
        request_id=RequestId("r"),
        attempt=1,
        model="fake",
        prompt_token_ids=PackedInts(token_ids),
        sampling=sampling,
        reply=ReplyTarget("_INBOX.x"),
        root_span=SPAN,
        attempt_span=SPAN,
        decode_worker_id=WorkerId("d"),
        decode_host_id="h",
    )
    leased = LeasedBlocks(LeaseId("l"), list(range(num_blocks)), [1] * num_blocks, 32, 0)
    sampler = Sampler(sampling, token_ids)
    return PrefillSequence(job, leased, sampler, token_ids, num_computed_tokens)


@given(lengths=st.lists(st.integers(1, 200), max_size=12), budget=st.integers(1, 100))
def test_every_row_is_computed_once_within_the_budget(lengths: list[int], budget: int) -> None:
    sequences = [make_sequence(length) for length in lengths]
    computed: list[list[int]] = [[] for _ in lengths]
    for _ in range(sum(lengths) + 1):
        chunks = plan(sequences, PromptBudget(budget))
        if not chunks:
            break
        num_waiting = sum(len(s.token_ids) - s.num_computed_tokens for s in sequences)

        assert min(budget, num_waiting) == sum(chunk.rows.num_rows for chunk in chunks)
        for chunk in chunks:
            sequence, rows = chunk.sequence, chunk.rows
            computed[sequences.index(sequence)] += rows.token_ids[rows.num_computed_tokens :]
            sequence.num_computed_tokens += rows.num_rows
            is_whole = sequence.num_computed_tokens == len(sequence.token_ids)
            assert (is_whole, int(is_whole)) == (chunk.is_last, rows.num_logit_rows)
            if is_whole:
                sequence.first_token = SampledToken(0)

    assert [list(range(length)) for length in lengths] == computed


def test_a_short_prompt_passes_a_long_one() -> None:
    chunks = plan([make_sequence(1000), make_sequence(10)], PromptBudget(64))

    assert [54, 10] == [chunk.rows.num_rows for chunk in chunks]
    assert [False, True] == [chunk.is_last for chunk in chunks]


def test_what_is_done_takes_no_rows() -> None:
    cancelled, failed, sampled = (make_sequence(5) for _ in range(3))
    cancelled.is_cancelled = True
    failed.error = ValueError()
    sampled.first_token = SampledToken(1)

    assert [] == plan([cancelled, failed, sampled], PromptBudget(10))


def test_a_prompt_goes_on_where_it_stopped() -> None:
    (chunk,) = plan([make_sequence(20, 12)], PromptBudget(5))

    assert (12, 5, list(range(17))) == (
        chunk.rows.num_computed_tokens,
        chunk.rows.num_rows,
        list(chunk.rows.token_ids),
    )


def test_nothing_is_computed_beyond_the_blocks_at_hand() -> None:
    sequences = [make_sequence(100, 32, num_blocks=1), make_sequence(100, 32, num_blocks=2)]
    (chunk,) = plan(sequences, PromptBudget(512))

    assert (sequences[1], 32, False) == (chunk.sequence, chunk.rows.num_rows, chunk.is_last)
