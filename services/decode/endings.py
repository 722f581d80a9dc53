"""Whose it is to end a sequence's stream, and what its error is called. Pure."""

from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.messages.generate import REPLACED

DRAINING = "worker_draining"


def is_answered(sequence: DecodeSequence) -> bool:
    """
    Tell whether the client of a sequence that is over gets its ending from here.

    While the client has seen nothing another attempt may serve the request: then the scheduler
    decides. A stream that has begun is ours to end, unless the scheduler took it away. So is all
    that a stopping worker has begun, for the scheduler may be stopping too.
    """
    if sequence.cancel_reason is not None or sequence.ending is not None:
        return sequence.cancel_reason != REPLACED
    code = error_code(sequence.error)
    has_begun = bool(sequence.log.token_ids or sequence.job.output_token_ids)
    is_shown = has_begun and (sequence.job.reply.is_streamed or code == DRAINING)
    return is_shown or code == "deadline_exceeded"


def error_code(error: Exception | None) -> str:
    """Return what an error is called in answers and reports."""
    return error.code if isinstance(error, SlipstreamError) else "internal_error"
