"""Who repeats the events of an index has its hashes; who missed some asks for all of them."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.services.kv_manager.index_events import IndexEvents
from slipstream.services.kv_manager.prefix_index import PrefixIndex
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.ids import HostId
from slipstream.shared.kv.block_hash import BlockHasher, PrefixKeys
from slipstream.shared.kv.kv_class import KvClass
from slipstream.shared.messages.kv import Known, KnownBlocks, Match
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import KvEvent
from slipstream.shared.scheduling.prefix_map import PrefixMap
from slipstream.shared.scheduling.prompt_hashes import PromptHashes

from .lease_messages import BLOCK_SIZE, A, commit, leased, make_book, release

HOST = HostId("h")
NUM_BLOCKS = 24
SIZE = 4  # bytes of a block's tokens


@dataclass
class Told:
    """An index that is told of, with changes as a busy host makes them."""

    seed: int = 0
    num_blocks: int = NUM_BLOCKS
    max_num: int = 5  # of an event, and of an answer
    free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.events = IndexEvents(HOST, 7, self.num_blocks, max_num_blocks=self.max_num)
        self.index = PrefixIndex(BlockHasher(), self.events.changes)
        self.root = self.index.root(PrefixKeys(layout="l"))
        self.free = list(range(1, self.num_blocks + 1))
        self.random = random.Random(self.seed)

    def change(self) -> None:
        """Commit a prompt, or evict a block with all behind it."""
        held = [each for each in range(1, self.num_blocks + 1) if each in self.index]
        blocks = [
            self.random.choice("ab").encode() * SIZE for _ in range(self.random.randint(1, 7))
        ]
        if held and (len(blocks) > len(self.free) or self.random.random() < 0.4):
            self.free += self.index.remove(self.random.choice(held))
            return
        if len(blocks) <= len(self.free):
            ids = [self.free.pop(self.random.randrange(len(self.free))) for _ in blocks]
            self.index.extend(self.root, ids, blocks)
            self.free += [each for each in ids if each not in self.index]

    @property
    def hashes(self) -> set[bytes]:
        """All hashes that the index knows."""
        return {*self.index.hashes(1, self.num_blocks + 1)}

    def known(self, first: int = 1) -> KnownBlocks:
        """Answer a question."""
        return self.events.known(self.index, Known(first))


@pytest.mark.parametrize("seed", range(20))
def test_who_repeats_all_events_has_all_hashes(seed: int) -> None:
    told, known, numbers = Told(seed), set[bytes](), []
    for _ in range(60):
        told.change()
        if told.random.random() < 0.3:
            for event in told.events.take():
                assert 1 <= len(event.stored) + len(event.removed) <= told.max_num
                assert not set(event.stored) & set(event.removed)
                known = known - {*event.removed} | {*event.stored}
                numbers.append(event.number)
            assert told.hashes == known

    assert numbers
    assert list(range(1, len(numbers) + 1)) == numbers, "without gaps"


def test_what_came_and_went_between_two_looks_is_told_as_it_is_at_the_end() -> None:
    told = Told()
    blocks = [b"aaaa", b"bbbb"]
    told.index.extend(told.root, [1, 2], blocks)
    first = told.index.hash_of(1)
    told.index.remove(2)
    told.index.remove(1)
    told.index.extend(told.root, [3], blocks[:1])
    (event,) = told.events.take()

    assert first in event.stored
    assert 1 == len(event.removed), "the second block"
    assert [] == list(told.events.take())


def test_all_hashes_are_told_in_answers_of_a_bounded_size() -> None:
    told = Told(num_blocks=1000, max_num=64)
    told.index.extend(told.root, range(1, 1001), (bytes([n % 256] * SIZE) for n in range(1000)))
    found, first, sizes = set[bytes](), 1, []
    while True:
        answer = told.known(first)
        found |= {answer.hashes[at : at + 16] for at in range(0, len(answer.hashes), 16)}
        sizes.append(len(answer.hashes) // 16)
        if answer.next_block_id is None:
            break
        first = answer.next_block_id

    assert told.hashes == found
    assert 1000 == len(found)
    assert (64, 16) == (max(sizes), len(sizes))


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(st.sampled_from(["change", "tell", "lose", "ask", "ask", "start"]), max_size=80),
)
def test_a_map_is_right_again_after_lost_events_whatever_happens_meanwhile(
    seed: int, steps: list[str]
) -> None:
    """Events get lost, and the whole set comes in parts while blocks come and go."""
    told, seen = Told(seed), PrefixMap()
    next_block_id: int | None = None
    for step in steps:
        if step == "change":
            told.change()
        elif step in ("tell", "lose"):
            for event in [*told.events.take()] or [told.events.quiet()]:
                if step == "tell":
                    seen.event(event)
        elif step == "start":
            next_block_id = 1 if seen.begin(HOST) else None
        elif next_block_id is not None:
            answer = told.known(next_block_id)
            next_block_id = answer.next_block_id if seen.gather(answer) else None

    heal(told, seen)

    assert told.hashes == held_by(seen)
    told.change()
    for event in told.events.take():
        seen.event(event)
    assert told.hashes == held_by(seen)


def test_what_an_answer_had_seen_is_not_undone_by_an_older_event() -> None:
    """A block left and came back while the set was asked for; the event of its return is lost."""
    told, seen = Told(max_num=NUM_BLOCKS), PrefixMap()
    told.index.extend(told.root, [1], [b"aaaa"])
    list(told.events.take())
    seen.event(told.events.quiet())
    assert seen.begin(HOST)
    told.index.remove(1)
    (left,) = told.events.take()
    told.index.extend(told.root, [1], [b"aaaa"])
    list(told.events.take())
    seen.event(left)
    assert seen.gather(told.known())
    seen.event(told.events.quiet())

    assert not seen.is_stale(HOST), "nothing is missing that the answer had not seen"
    assert told.hashes == held_by(seen)


def heal(told: Told, seen: PrefixMap) -> None:
    """Lose nothing any more, as long as it takes to see a gap and close it."""
    for event in [*told.events.take(), told.events.quiet()]:
        seen.event(event)
    next_block_id = 1 if seen.is_stale(HOST) and seen.begin(HOST) else None
    while next_block_id is not None:
        answer = told.known(next_block_id)
        assert seen.gather(answer)
        next_block_id = answer.next_block_id
        told.change()
        for event in told.events.take():
            seen.event(event)

    assert not seen.is_stale(HOST)


@settings(max_examples=100, deadline=None)
@given(prompts=st.lists(st.text("ab", min_size=1, max_size=23), min_size=1, max_size=8))
def test_a_scheduler_finds_the_blocks_that_the_manager_finds(prompts: list[str]) -> None:
    """By its own hashes, of what a worker leases with: a class of KV in parts, a salt."""
    book = make_book(64)
    events = IndexEvents(HOST, 7, 64)
    book.prefixes.index._changes = events.changes
    seen, kv_class = PrefixMap(), KvClass("model", "", "int8")
    keys = {"model_fingerprint": "model", "numerics": "int8", "cache_salt": "salt"}
    for prompt in prompts * 2:
        token_ids = [ord(each) for each in prompt]
        message = Match(token_ids=PackedInts(token_ids), layout="", **keys)
        hashes = PromptHashes(message.token_ids, "salt", BLOCK_SIZE)
        for event in [*events.take()] or [events.quiet()]:
            seen.event(event)

        found = seen.num_cached_tokens(hashes, lambda _: str(kv_class)).get(HOST, 0)
        assert book.match(message, 0.0).num_cached_tokens // BLOCK_SIZE == found // BLOCK_SIZE
        held = leased(book, -(-len(token_ids) // BLOCK_SIZE), A, tokens=token_ids, **keys)
        commit(book, held.lease_id, len(token_ids), token_ids)
        release(book, held.lease_id)


def held_by(seen: PrefixMap) -> set[bytes]:
    return seen._hosts[HOST].known


async def test_a_manager_without_a_prefix_cache_tells_nothing() -> None:
    events, bus, heard = IndexEvents(HOST, 7, NUM_BLOCKS, is_on=False), MemoryBus(), []

    async def hear(message: object) -> None:
        heard.append(message)

    await bus.subscribe(">", hear)
    await events.loop(bus)  # ends at once
    index = PrefixIndex(BlockHasher(), events.changes)
    index.extend(index.root(PrefixKeys(layout="l")), [1], [b"aaaa"])

    assert [] == [*events.take()]
    assert KnownBlocks(HOST, 7, 0) == events.known(index, Known())
    assert [] == heard


def test_an_event_is_told_as_it_stands_on_the_wire() -> None:
    told = Told()
    told.index.extend(told.root, [1], [b"aaaa"])

    assert [KvEvent(HOST, 7, 1, [told.index.hash_of(1)], [])] == [*told.events.take()]
    assert KvEvent(HOST, 7, 2, [], []) == told.events.quiet()
