"""Whose it is to end a sequence's stream, and what its error is called. Pure."""

from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.messages.generate import REPLACED
from slipstream.shared.scheduling.failures import FINAL_CODES

DRAINING = "worker_draining"


def is_answered(sequence: DecodeSequence) -> bool:
    """
    Tell whether the client of a sequence that is over gets its ending from here.

    Where another attempt may go on the scheduler decides. It can't where the client has read tokens
    that would not be said again: such a stream is ours to end, unless the scheduler took it away.
    So is all that a stopping worker has begun, for the scheduler may be stopping too.
    """
    if sequence.cancel_reason is not None or sequence.ending is not None:
        return sequence.cancel_reason != REPLACED
    code = error_code(sequence.error)
    has_begun = bool(sequence.log.token_ids or sequence.job.output_token_ids)
    is_unlike = sequence.job.sampling.speculation_mode == "rejection" or code in FINAL_CODES
    is_shown = sequence.job.reply.is_streamed and is_unlike
    return (has_begun and (is_shown or code == DRAINING)) or code == "deadline_exceeded"


def error_code(error: Exception | None) -> str:
    """Return what an error is called in answers and reports."""
    return error.code if isinstance(error, SlipstreamError) else "internal_error"
