"""What a sequence's span says at its end."""

from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.messages.common import Timings
from slipstream.shared.telemetry import names


def describe(sequence: DecodeSequence, timings: Timings | None) -> None:
    """Set the counts of a sequence, and its times if it was served."""
    usage = sequence.usage()
    acceptances = sequence.drafts.acceptances
    tpot_ms = None if timings is None else timings.tpot_ms
    sequence.span.set_many(
        {
            names.GEN_AI_USAGE_INPUT_TOKENS: usage.num_prompt_tokens,
            names.GEN_AI_USAGE_OUTPUT_TOKENS: usage.num_output_tokens,
            names.NUM_STEPS: usage.num_steps,
            names.NUM_CHUNKS: sequence.num_chunks,
            names.NUM_CACHED_TOKENS: usage.num_cached_tokens,
            names.NUM_PREEMPTIONS: usage.num_preemptions,
            names.NUM_DRAFT_PROPOSED: usage.num_drafted_tokens,
            names.NUM_DRAFT_TESTED: usage.num_tested_tokens,
            names.NUM_DRAFT_ACCEPTED: usage.num_accepted_tokens,
            names.DRAFT_ACCEPTANCE: None if acceptances is None else acceptances.rate,
            names.NUM_STEPS_DRAFT_UNUSED: sequence.drafts.num_steps_unused,
            names.TIME_TO_FIRST_TOKEN_S: None if timings is None else timings.ttft_ms / 1000,
            names.TIME_PER_OUTPUT_TOKEN_S: None if tpot_ms is None else tpot_ms / 1000,
        }
    )
