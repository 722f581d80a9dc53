"""Drafting for many sequences whose messages are repeated, lost or late."""

from slipstream.services.draft.proposer import Proposer
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.draft import (
    DraftClose,
    DraftJob,
    DraftOpen,
    DraftProposal,
    DraftWant,
)
from slipstream.shared.messages.packed import PackedInts


def make(max_num_sequences: int = 8) -> Proposer:
    return Proposer(1, 3, max_num_sequences)


def open_(proposer: Proposer, token_ids: list[int], request: str = "r") -> None:
    message = DraftOpen(request_id=RequestId(request), attempt=1, token_ids=PackedInts(token_ids))
    proposer.open(message)


def ask(
    proposer: Proposer,
    position: int,
    new: list[int],
    *,
    request: str = "r",
    is_whole: bool = False,
) -> DraftProposal:
    want = DraftWant(RequestId(request), 1, position, PackedInts(new), 3, is_whole)
    (proposal,) = proposer.propose(DraftJob([want])).proposals
    return proposal


def test_it_proposes_what_followed_before() -> None:
    proposer = make()
    open_(proposer, [1, 2, 3, 4, 1])
    proposal = ask(proposer, 6, [2])

    assert ([3, 4, 1], 6, False) == (
        list(proposal.token_ids),
        proposal.position,
        proposal.is_lost,
    )


def test_a_repeated_want_is_cut_by_its_position() -> None:
    proposer = make()
    open_(proposer, [1, 2, 3, 4, 1])
    first = ask(proposer, 6, [2])

    assert first == ask(proposer, 6, [2])
    assert first == ask(proposer, 6, [4, 1, 2]), "an overlap as after a lost answer"


def test_a_gap_is_told_and_mended_by_the_whole_sequence() -> None:
    proposer = make()
    open_(proposer, [1, 2, 3])
    lost = ask(proposer, 6, [9])

    assert (True, []) == (lost.is_lost, list(lost.token_ids))
    found = ask(proposer, 6, [1, 2, 3, 1, 2, 9], is_whole=True)
    assert not found.is_lost
    assert not ask(proposer, 7, [1]).is_lost


def test_an_unknown_or_closed_sequence_is_lost() -> None:
    proposer = make()
    assert ask(proposer, 2, [1]).is_lost
    open_(proposer, [1])
    proposer.close(DraftClose(request_id=RequestId("r"), attempt=1))

    assert ask(proposer, 2, [1]).is_lost
    assert 0 == proposer.num_sequences


def test_the_sequence_that_asked_longest_ago_is_forgotten() -> None:
    proposer = make(2)
    for request in ("a", "b"):
        open_(proposer, [1, 2], request)
    ask(proposer, 3, [1], request="a")
    open_(proposer, [1, 2], "c")

    assert 2 == proposer.num_sequences
    assert ask(proposer, 3, [1], request="b").is_lost
    assert not ask(proposer, 4, [2], request="a").is_lost
