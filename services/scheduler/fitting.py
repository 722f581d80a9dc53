"""Why a request can't be served where there is room: too large, or too unlike. Pure."""

from slipstream.services.scheduler.answers import Refusal
from slipstream.services.scheduler.records import RequestRecord


def too_large(record: RequestRecord, max_num_blocks: int | None, block_size: int) -> Refusal | None:
    """Return why no pool can hold a request; None where one can, or none is known."""
    request = record.request
    num_tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
    if max_num_blocks is None or -(-num_tokens // block_size) <= max_num_blocks:
        return None
    return Refusal(
        "kv_too_large",
        f"prompt and max_tokens are {num_tokens} tokens; the KV cache holds "
        f"{max_num_blocks * block_size}: lower max_tokens, or start with more --kv-memory",
    )


def unlike(record: RequestRecord, kv_class: str) -> Refusal | None:
    """Return why a stream can't go on with such a worker: what was read might not come again."""
    has_shown = record.request.is_streamed and bool(record.token_ids)
    if record.kv_class == kv_class or not has_shown or record.request.allow_other_numerics:
        return None
    return Refusal(
        "worker_lost",
        "the worker is gone, and those left compute otherwise; set allow_other_numerics to go on",
    )
