"""Make full blocks findable: those of prompts computed here, and of what was said."""

from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.worker.lease_keeper import LeaseKeeper


class BlockCommits:
    """Tells the KV manager which blocks are complete, one message a sequence at a time."""

    def __init__(self, keeper: LeaseKeeper, block_size: int) -> None:
        self._keeper = keeper
        self._block_size = block_size

    def is_due(self, sequence: DecodeSequence) -> bool:
        """
        Tell whether others should find more of a prompt now.

        Generated blocks wait for the sequence's end: nobody asks for them before.
        """
        num_tokens = min(sequence.num_prefill_tokens, sequence.num_computed_tokens)
        is_due = num_tokens - sequence.num_committed_tokens >= self._block_size
        return is_due and not sequence.committing.locked()

    async def commit(self, sequence: DecodeSequence) -> None:
        """Commit all whole blocks; those of which the manager isn't told are just not found."""
        async with sequence.committing:
            first = sequence.num_committed_tokens
            end = sequence.num_whole_tokens(self._block_size)
            if sequence.lease_id is None or end <= first:
                return
            new = sequence.token_ids[first:end]
            if await self._keeper.commit(sequence.lease_id, end, new):
                sequence.num_committed_tokens = end
