"""Which blocks a decode worker makes findable, and when."""

import asyncio
from typing import Any

import pytest

from slipstream.services.decode.commits import BlockCommits
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.ids import LeaseId
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.messages.kv import Blocks
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.worker.leased_blocks import LeasedBlocks

from .decode_samples import make_job, make_sequence, say

SIZE = 4


class Keeper:
    """Remembers what it was told to commit."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, list[int]]] = []
        self.wanted: list[tuple[int, int]] = []
        self.is_answered = True
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def commit(
        self,
        _lease_id: LeaseId,
        num_tokens: int,
        token_ids: list[int],
        num_known_blocks: int,
        num_wanted_blocks: int,
    ) -> Blocks | None:
        self.heard.append((num_tokens, list(token_ids)))
        self.wanted.append((num_known_blocks, num_wanted_blocks))
        await self.may_answer.wait()
        new = list(range(num_known_blocks + 1, num_wanted_blocks + 1))
        return Blocks(PackedInts(new), PackedInts(new)) if self.is_answered else None


def leased(
    sequence: DecodeSequence, num_cached_tokens: int = 0, num_reserved: int = 0
) -> DecodeSequence:
    blocks = LeasedBlocks(LeaseId("l"), [1, 2, 3], [1, 1, 1], SIZE, num_cached_tokens, num_reserved)
    sequence.take_lease(blocks)
    return sequence


def made(keeper: Any) -> BlockCommits:
    return BlockCommits(keeper, KvLayout(1, 1, 2, SIZE, kind="fake"), 2 * SIZE)


async def test_a_prompt_is_committed_as_it_is_computed_from_the_cached_length_on() -> None:
    keeper, sequence = Keeper(), leased(make_sequence(list(range(11))), SIZE)
    commits = made(keeper)
    assert (SIZE, False) == (sequence.num_computed_tokens, commits.is_due(sequence))
    sequence.num_computed_tokens = 9
    assert commits.is_due(sequence)
    await commits.commit(sequence)

    assert [(8, [4, 5, 6, 7])] == keeper.heard
    assert not commits.is_due(sequence)


async def test_promised_blocks_come_with_the_commits_and_enter_between_steps() -> None:
    keeper, sequence = Keeper(), leased(make_sequence(list(range(30))), num_reserved=5)
    commits = made(keeper)
    assert not commits.is_due(sequence), "there are blocks for the next two steps"
    sequence.num_computed_tokens = 3 * SIZE
    assert 0 == sequence.num_room_tokens(SIZE)
    await commits.commit(sequence)

    assert [(3, 5)] == keeper.wanted
    assert [1, 2, 3] == sequence.block_ids, "a step may be reading the table"
    assert not commits.is_due(sequence)
    assert sequence.leased is not None
    sequence.leased.absorb()
    assert [1, 2, 3, 4, 5] == sequence.block_ids
    assert (3, 2 * SIZE) == (sequence.num_reserved_blocks, sequence.num_room_tokens(SIZE))


async def test_promised_blocks_are_asked_for_again_without_an_answer() -> None:
    keeper, sequence = Keeper(), leased(make_sequence(list(range(30))), num_reserved=5)
    commits = made(keeper)
    sequence.num_computed_tokens = 3 * SIZE
    keeper.is_answered = False
    await commits.commit(sequence)
    assert commits.is_due(sequence)
    keeper.is_answered = True
    await commits.commit(sequence)

    assert [(3, 5), (3, 5)] == keeper.wanted
    assert sequence.leased is not None
    assert [4, 5] == [block_id for block_id, _ in sequence.leased.arrived]


async def test_what_is_said_waits_for_the_end() -> None:
    keeper, sequence = Keeper(), leased(make_sequence([0, 1, 2]))
    sequence.num_computed_tokens = 3
    say(sequence, "abcdef")
    sequence.num_computed_tokens = 8
    assert not made(keeper).is_due(sequence)
    await made(keeper).commit(sequence)

    assert [(8, [0, 1, 2, *b"abcde"])] == keeper.heard


async def test_drafts_beyond_the_token_that_ended_it_are_never_committed() -> None:
    """KV of five drafts was computed, and the second of them ended the sequence."""
    keeper, sequence = Keeper(), leased(make_sequence([0, 1]))
    say(sequence, "ab")
    sequence.num_computed_tokens = 8
    await made(keeper).commit(sequence)

    assert [(4, [0, 1, *b"ab"])] == keeper.heard


async def test_one_commit_at_a_time_and_the_next_tells_what_got_no_answer() -> None:
    keeper, sequence = Keeper(), leased(make_sequence(list(range(12))))
    commits = made(keeper)
    keeper.may_answer.clear()
    keeper.is_answered = False
    sequence.num_computed_tokens = 4
    first = asyncio.create_task(commits.commit(sequence))
    await asyncio.sleep(0)
    sequence.num_computed_tokens = 8
    assert not commits.is_due(sequence), "one is on its way"
    keeper.may_answer.set()
    await first
    await commits.commit(sequence)

    assert [(4, [0, 1, 2, 3]), (8, list(range(8)))] == keeper.heard


async def test_without_a_lease_there_is_nothing_to_commit() -> None:
    keeper, sequence = Keeper(), leased(make_sequence(list(range(8))))
    sequence.num_computed_tokens = 8
    sequence.drop_blocks()
    await made(keeper).commit(sequence)

    assert ([], 0, []) == (keeper.heard, sequence.num_computed_tokens, sequence.block_ids)


@pytest.mark.parametrize(("found", "expected"), [(4, 4), (5, 5), (8, 6), (12, 6)])
def test_cached_output_of_earlier_attempts_is_not_cached_prompt(found: int, expected: int) -> None:
    """Usage says less than the prompt, though a lease may find more."""
    sequence = make_sequence(list(range(7)), make_job(list(range(7)), output=list(range(9))))
    sequence.note_cached(found)

    assert expected == sequence.usage().num_cached_tokens
