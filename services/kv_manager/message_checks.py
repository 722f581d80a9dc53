"""Refuse messages whose numbers no books can hold: the books reckon with what they are told."""

import math

import msgspec

from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.messages.kv import (
    Blocks,
    Commit,
    Grant,
    Known,
    KvRequest,
    Lease,
    Match,
    Pull,
    Release,
    Renew,
)

_MAX_NUMBER = 2**32 - 1  # of blocks, tokens and milliseconds: far above what any host has

# Whole numbers that count something, by the message that has them.
_COUNTS: dict[type[msgspec.Struct], tuple[str, ...]] = {
    Match: ("wait_ms",),
    Lease: ("num_blocks", "num_first_blocks", "num_spare_blocks"),
    Commit: ("num_tokens", "num_known_blocks", "num_wanted_blocks"),
    Grant: ("num_blocks",),
    Pull: ("first_block_idx",),
    Known: ("first_block_id",),
}


def check_message(message: KvRequest) -> None:
    """Raise InvalidRequestError for a message that means nothing."""
    for name in _COUNTS.get(type(message), ()):
        value = getattr(message, name)
        if value is not None and not 0 <= value <= _MAX_NUMBER:
            raise InvalidRequestError(
                name,
                f"{value} is out of range; it must lie in [0, {_MAX_NUMBER}]",
                limit=_MAX_NUMBER,
            )
    match message:
        case Lease() if not math.isfinite(message.elapsed_ms):
            raise InvalidRequestError("elapsed_ms", "must be a finite number")
        case Commit() | Release():
            _check_blocks("grown", message.grown)
        case Grant():
            _check_blocks("returned", message.returned)
        case Pull():
            _check_blocks("source", message.source)
        case Renew():
            for renewal in message.renewals:
                _check_blocks("renewals.grown", renewal.grown)


def _check_blocks(field: str, blocks: Blocks) -> None:
    num_ids, num_generations = len(blocks.block_ids), len(blocks.generations)
    if num_ids != num_generations:
        raise InvalidRequestError(
            field, f"{num_ids} blocks have {num_generations} generations; each needs one"
        )
