"""Make full blocks findable: those of prompts computed here, and of what was said."""

from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.worker.lease_keeper import LeaseKeeper


class BlockCommits:
    """Tells the KV manager which blocks are complete, one message a sequence at a time."""

    def __init__(self, keeper: LeaseKeeper, layout: KvLayout, num_tokens_ahead: int) -> None:
        self._keeper = keeper
        self._layout = layout
        self._num_ahead = num_tokens_ahead

    def is_due(self, sequence: DecodeSequence) -> bool:
        """
        Tell whether others should find more of a prompt now, or it needs more blocks.

        Generated blocks wait for the sequence's end: nobody asks for them before.
        """
        if sequence.committing.locked():
            return False
        num_tokens = min(sequence.num_prefill_tokens, sequence.num_computed_tokens)
        is_whole = num_tokens - sequence.num_committed_tokens >= self._layout.block_size
        leased = sequence.leased
        return is_whole or (leased is not None and self._num_wanted(sequence) > leased.num_known)

    async def commit(self, sequence: DecodeSequence) -> None:
        """Commit all whole blocks; those of which the manager isn't told are just not found."""
        async with sequence.committing:
            first = sequence.num_committed_tokens
            end = sequence.num_whole_tokens(self._layout.block_size)
            lease_id, leased = sequence.lease_id, sequence.leased
            num_wanted = self._num_wanted(sequence)
            num_known = leased.num_known if leased is not None and num_wanted else 0
            if lease_id is None or (end <= first and num_wanted <= num_known):
                return
            new = sequence.token_ids[first:end]
            more = await self._keeper.commit(lease_id, end, new, num_known, num_wanted)
            if more is None or sequence.lease_id != lease_id:
                return
            sequence.num_committed_tokens = end
            if leased is not None:
                leased.take(more)

    def _num_wanted(self, sequence: DecodeSequence) -> int:
        """Return how many blocks a prompt should have now; 0 when it has all it was promised."""
        if not sequence.num_reserved_blocks:
            return 0
        end = sequence.num_computed_tokens + self._num_ahead
        return self._layout.num_blocks_for(min(end, sequence.num_prefill_tokens))
