"""Drafting with a model for sequences whose messages are repeated, lost or late."""

import pytest

from slipstream.services.draft.model_desk import ModelDesk
from slipstream.services.draft.model_proposer import DraftMismatchError, ModelProposer
from slipstream.shared.drafting.drafter import Drafter
from slipstream.shared.drafting.engine import DraftEngine
from slipstream.shared.ids import RequestId
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.messages.draft import (
    DraftClose,
    DraftJob,
    DraftOpen,
    DraftProposal,
    DraftWant,
)
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.model.fake_runner import FakeRunner, next_token_id

NUM_BLOCKS = 16
TOKENS = list(b"some tokens")


@pytest.fixture
def engine() -> DraftEngine:
    layout = KvLayout(1, 1, 1, kind="fake")
    kv = memoryview(bytearray(NUM_BLOCKS * layout.block_bytes))
    return DraftEngine(FakeRunner(kv, layout, NUM_BLOCKS), NUM_BLOCKS, 1000)


@pytest.fixture
def proposer(engine: DraftEngine) -> ModelProposer:
    return ModelProposer(Drafter(engine, takes_ngrams=False), "ours", "f1", 2)


def opening(token_ids: list[int], request: str = "r", fingerprint: str = "f1") -> DraftOpen:
    return DraftOpen(
        request_id=RequestId(request),
        attempt=1,
        token_ids=PackedInts(token_ids),
        model="theirs",
        tokenizer_fingerprint=fingerprint,
    )


def want(
    position: int, new: list[int], request: str = "r", *, is_whole: bool = False, count: int = 3
) -> DraftWant:
    return DraftWant(RequestId(request), 1, position, PackedInts(new), count, is_whole)


def ask(proposer: ModelProposer, *wants: DraftWant) -> list[DraftProposal]:
    return proposer.propose(DraftJob(list(wants))).proposals


def said_after(token_ids: list[int], num_tokens: int) -> list[int]:
    tokens = list(token_ids)
    for _ in range(num_tokens):
        tokens.append(next_token_id(tokens))
    return tokens[len(token_ids) :]


def test_an_opened_sequence_is_drafted_for_and_goes_on(proposer: ModelProposer) -> None:
    proposer.open(opening(TOKENS))
    (first,) = ask(proposer, want(len(TOKENS), []))
    said = [*first.token_ids[:1], ord("!")]
    (second,) = ask(proposer, want(len(TOKENS) + 2, said))

    assert said_after(TOKENS, 3) == list(first.token_ids)
    assert said_after([*TOKENS, *said], 3) == list(second.token_ids)


def test_a_message_that_came_twice_is_cut_by_position(proposer: ModelProposer) -> None:
    proposer.open(opening(TOKENS))
    (twice,) = ask(proposer, want(len(TOKENS), TOKENS[-4:]))

    assert (said_after(TOKENS, 3), False) == (list(twice.token_ids), twice.is_lost)


def test_a_gap_or_an_unknown_sequence_is_said_to_be_lost_and_may_come_whole(
    proposer: ModelProposer,
) -> None:
    proposer.open(opening(TOKENS[:4]))
    lost = ask(proposer, want(len(TOKENS), TOKENS[-2:]), want(9, [1], "unknown"))
    (whole,) = ask(proposer, want(len(TOKENS), TOKENS, is_whole=True))

    assert [(True, []), (True, [])] == [(each.is_lost, list(each.token_ids)) for each in lost]
    assert (said_after(TOKENS, 3), False) == (list(whole.token_ids), whole.is_lost)


def test_who_asked_longest_ago_is_forgotten_with_its_blocks(
    proposer: ModelProposer, engine: DraftEngine
) -> None:
    for request in ("a", "b", "c"):
        ask(proposer, want(len(TOKENS), TOKENS, request, is_whole=True))

    assert (2, NUM_BLOCKS - 1 - 2) == (proposer.num_sequences, engine.num_free_blocks)
    assert ask(proposer, want(len(TOKENS), [], "a"))[0].is_lost


def test_an_ended_sequence_leaves_nothing(proposer: ModelProposer, engine: DraftEngine) -> None:
    proposer.open(opening(TOKENS))
    ask(proposer, want(len(TOKENS), []))
    proposer.close(DraftClose(request_id=RequestId("r"), attempt=1))

    assert (0, NUM_BLOCKS - 1) == (proposer.num_sequences, engine.num_free_blocks)


def test_many_wants_are_answered_together(proposer: ModelProposer, engine: DraftEngine) -> None:
    for request in ("a", "b"):
        proposer.open(opening([*TOKENS, ord(request)], request))
    while proposer.catch_up():
        pass
    before = engine.runner.num_forwards
    wants = [want(len(TOKENS) + 1, [], request) for request in ("a", "b")]
    proposals = ask(proposer, *wants)

    assert [said_after([*TOKENS, ord(r)], 3) for r in ("a", "b")] == [
        list(each.token_ids) for each in proposals
    ]
    assert 3 == engine.runner.num_forwards - before


def test_what_was_drafted_ahead_is_there_when_all_is_accepted(
    proposer: ModelProposer, engine: DraftEngine
) -> None:
    job = DraftJob([want(len(TOKENS), TOKENS, is_whole=True)])
    (first,) = proposer.propose(job).proposals
    proposer.draft_ahead(job)
    accepted = said_after(TOKENS, 4)
    before = engine.runner.num_forwards
    (second,) = ask(proposer, want(len(TOKENS) + 4, accepted))

    assert (accepted[:3], 0) == (list(first.token_ids), engine.runner.num_forwards - before)
    assert said_after([*TOKENS, *accepted], 3) == list(second.token_ids)


async def test_a_target_of_other_tokens_is_refused_with_both_names(
    proposer: ModelProposer,
) -> None:
    desk = ModelDesk(proposer, is_drafting_ahead=False)
    with pytest.raises(DraftMismatchError, match=r"for ours \(tokenizer f1\), not for theirs"):
        await desk.open(opening(TOKENS, fingerprint="f2"))
    await desk.open(opening(TOKENS))
    answer = await desk.propose(DraftJob([want(len(TOKENS), [])]))
    await desk.shut()

    assert said_after(TOKENS, 3) == list(answer.proposals[0].token_ids)
