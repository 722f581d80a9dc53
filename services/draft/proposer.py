"""Drafting for many sequences. Pure: messages in, proposals out."""

from collections import OrderedDict

from slipstream.shared.messages.draft import (
    DraftClose,
    DraftJob,
    DraftOpen,
    DraftProposal,
    DraftTokens,
    DraftWant,
)
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.worker.ngram import NgramIndex
from slipstream.shared.worker.report_book import Attempt


class Proposer:
    """
    Owns what is known of each sequence.

    Bounded: the sequence that asked longest ago is forgotten; its decode worker is told so and
    sends it whole again.
    """

    def __init__(self, min_ngram: int, max_ngram: int, max_num_sequences: int) -> None:
        self._ngram = (min_ngram, max_ngram)
        self._max_num_sequences = max_num_sequences
        self._indexes: OrderedDict[Attempt, NgramIndex] = OrderedDict()

    @property
    def num_sequences(self) -> int:
        """Sequences known."""
        return len(self._indexes)

    def open(self, message: DraftOpen) -> None:
        """Begin with a sequence."""
        self._restart((message.request_id, message.attempt), message.token_ids)

    def close(self, message: DraftClose) -> None:
        """Forget a sequence."""
        self._indexes.pop((message.request_id, message.attempt), None)

    def propose(self, job: DraftJob) -> DraftTokens:
        """Answer every want."""
        return DraftTokens([self._propose(want) for want in job.wants])

    def _propose(self, want: DraftWant) -> DraftProposal:
        attempt = (want.request_id, want.attempt)
        if want.is_whole:
            self._restart(attempt, want.new_token_ids)
        else:
            self._append(attempt, want)
        index = self._indexes.get(attempt)
        is_lost = index is None or index.num_tokens != want.position
        token_ids = [] if index is None or is_lost else index.propose(want.max_num_tokens)
        return DraftProposal(
            request_id=want.request_id,
            attempt=want.attempt,
            position=want.position,
            token_ids=PackedInts(token_ids),
            is_lost=is_lost,
        )

    def _append(self, attempt: Attempt, want: DraftWant) -> None:
        """Add what is new; a message that came twice overlaps and is cut by position."""
        index = self._indexes.get(attempt)
        if index is None:
            return
        self._indexes.move_to_end(attempt)
        first = want.position - len(want.new_token_ids)
        if first <= index.num_tokens:
            index.extend(want.new_token_ids[index.num_tokens - first :])

    def _restart(self, attempt: Attempt, token_ids: PackedInts) -> None:
        index = NgramIndex(*self._ngram)
        index.extend(token_ids)
        self._indexes[attempt] = index
        self._indexes.move_to_end(attempt)
        while len(self._indexes) > self._max_num_sequences:
            self._indexes.popitem(last=False)
