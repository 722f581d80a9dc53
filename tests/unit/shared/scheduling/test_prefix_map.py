"""How much of a prompt each host holds, beside a plain dictionary of whole prefixes."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.shared.ids import HostId
from slipstream.shared.kv.block_hash import BlockHasher, PrefixKeys, full_blocks
from slipstream.shared.kv.kv_class import KvClass
from slipstream.shared.messages.kv import KnownBlocks
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import KvEvent
from slipstream.shared.scheduling.prefix_map import PrefixMap
from slipstream.shared.scheduling.prompt_hashes import PromptHashes

A, B = HostId("a"), HostId("b")
SIZE = 2
INT8, FLOAT32 = "model|layout|int8", "model|layout|float32"
CLASSES = {A: INT8, B: FLOAT32}


def hashes(token_ids: list[int], kv_class: str = INT8, salt: str = "") -> list[bytes]:
    """Return the hashes of all full blocks, as a KV manager makes them."""
    model, layout, numerics = kv_class.split("|")
    keys = PrefixKeys(layout=layout, model=model, numerics=numerics, cache_salt=salt)
    hasher = BlockHasher()
    found = [hasher.root(keys.packed())]
    for block in full_blocks(PackedInts(token_ids), SIZE):
        found.append(hasher.child(found[-1], block))
    return [*found[1:]]


def event(
    number: int,
    stored: Sequence[bytes],
    removed: Sequence[bytes] = (),
    host_id: HostId = A,
    epoch: int = 1,
) -> KvEvent:
    return KvEvent(host_id, epoch, number, [*stored], [*removed])


def cached(seen: PrefixMap, token_ids: list[int], salt: str = "") -> Mapping[HostId, int]:
    prompt = PromptHashes(PackedInts(token_ids), salt, SIZE)
    return seen.num_cached_tokens(prompt, lambda host_id: CLASSES.get(host_id, ""))


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=9)
salts = st.sampled_from(["", "x"])
hosts = st.sampled_from([A, B])
kinds = st.sampled_from(["store", "remove"])


@settings(max_examples=300, deadline=None)
@given(
    told=st.lists(st.tuples(kinds, hosts, prompts, salts), max_size=12),
    asked=st.lists(st.tuples(prompts, salts), min_size=1, max_size=6),
)
def test_it_finds_what_a_plain_dictionary_of_prefixes_finds(
    told: list[tuple[str, HostId, list[int], str]], asked: list[tuple[list[int], str]]
) -> None:
    """One prompt is asked for again and again, for its hashes are kept."""
    seen, numbers = PrefixMap(), {A: 0, B: 0}
    plain: dict[HostId, set[tuple[str, tuple[int, ...]]]] = {A: set(), B: set()}
    kept = [PromptHashes(PackedInts(token_ids), salt, SIZE) for token_ids, salt in asked]
    for kind, host_id, token_ids, salt in told:
        ends = range(SIZE, len(token_ids) + 1, SIZE)
        prefixes = [(salt, tuple(token_ids[:end])) for end in ends]
        made = hashes(token_ids, CLASSES[host_id], salt)
        numbers[host_id] += 1
        if kind == "store":
            plain[host_id] |= {*prefixes}
            seen.event(event(numbers[host_id], made, host_id=host_id))
        else:
            plain[host_id] -= {*prefixes[-1:]}
            seen.event(event(numbers[host_id], [], made[-1:], host_id=host_id))
        for prompt, (asked_ids, asked_salt) in zip(kept, asked, strict=True):
            expected = {
                each: num
                for each in (A, B)
                if (num := plain_length(plain[each], asked_ids, asked_salt))
            }
            assert expected == seen.num_cached_tokens(prompt, CLASSES.__getitem__)


def plain_length(known: set[tuple[str, tuple[int, ...]]], token_ids: list[int], salt: str) -> int:
    """Return the length of the longest known prefix of whole blocks, but for the last token."""
    num = 0
    while num + SIZE < len(token_ids) and (salt, tuple(token_ids[: num + SIZE])) in known:
        num += SIZE
    return num


@pytest.mark.parametrize(("length", "expected"), [(1, 0), (2, 0), (3, 2), (6, 4), (7, 6)])
def test_the_last_token_is_always_left_to_compute(length: int, expected: int) -> None:
    seen = PrefixMap()
    seen.event(event(1, hashes([5] * 8)))

    assert expected == cached(seen, [5] * length).get(A, 0)


def test_a_new_prompt_costs_one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    child = BlockHasher.child

    def counted(self: BlockHasher, *arguments: bytes) -> bytes:
        made.append(arguments)
        return child(self, *arguments)  # type: ignore[arg-type] # as it came

    seen = PrefixMap()
    seen.event(event(1, hashes([5] * 8)))
    monkeypatch.setattr(BlockHasher, "child", counted)

    assert {} == cached(seen, [6] * 1000)
    assert 1 == len(made)


def test_a_host_without_decode_workers_or_with_another_salt_holds_nothing() -> None:
    seen = PrefixMap()
    seen.event(event(1, hashes([5] * 8), host_id=HostId("idle")))
    seen.event(event(1, hashes([5] * 8)))

    assert {A: 6} == cached(seen, [5] * 8)
    assert {} == cached(seen, [5] * 8, "other")


def test_an_unknown_class_of_kv_is_no_reason_to_fall_over() -> None:
    seen = PrefixMap()
    seen.event(event(1, hashes([5] * 8)))
    prompt = PromptHashes(PackedInts([5] * 8), "", SIZE)

    assert {} == seen.num_cached_tokens(prompt, lambda _: "no class")
    assert {A: 6} == seen.num_cached_tokens(prompt, lambda _: INT8), "asked by another class"


def test_from_the_first_event_on_nothing_is_missing() -> None:
    seen = PrefixMap()
    seen.event(event(1, [b"1" * 16]))
    seen.event(event(2, []))
    seen.event(event(2, [b"2" * 16]))  # a repeat

    assert not seen.is_stale(A)
    assert {A: 1} == seen.num_blocks()


@pytest.mark.parametrize("first", [2, 57])
def test_who_comes_late_or_sees_a_gap_is_stale_until_all_parts_have_come(first: int) -> None:
    seen = PrefixMap()
    seen.event(event(first, [b"1" * 16]))
    assert seen.is_stale(A)
    assert seen.begin(A)
    assert seen.gather(KnownBlocks(A, 1, first, b"2" * 16 + b"3" * 16, 3))
    assert seen.is_stale(A)
    assert {A: 1} == seen.num_blocks(), "what is known serves until then"
    seen.event(event(first + 1, [b"4" * 16], [b"2" * 16]))
    assert seen.gather(KnownBlocks(A, 1, first + 1, b"4" * 16))

    assert not seen.is_stale(A)
    assert {A: 2} == seen.num_blocks()
    assert not seen.begin(A), "there is nothing to ask for"


def test_a_set_that_misses_an_event_is_thrown_away() -> None:
    seen = PrefixMap()
    seen.event(event(2, []))
    seen.begin(A)
    assert seen.gather(KnownBlocks(A, 1, 4, b"1" * 16, 3))
    seen.event(event(5, []))  # 3 and 4 were lost before the answer, which had seen them
    seen.event(event(7, []))

    assert not seen.gather(KnownBlocks(A, 1, 7, b"2" * 16))
    assert seen.is_stale(A)
    seen.begin(A)
    assert not seen.gather(KnownBlocks(A, 2, 1)), "of another epoch"


def test_what_an_answer_had_seen_may_be_lost() -> None:
    seen = PrefixMap()
    seen.event(event(2, []))
    seen.begin(A)
    assert seen.gather(KnownBlocks(A, 1, 4, b"1" * 16, 3))
    seen.event(event(5, []))

    assert seen.gather(KnownBlocks(A, 1, 5, b"2" * 16)), "3 and 4 are in the first part"
    assert {A: 2} == seen.num_blocks()


def test_a_new_epoch_begins_with_nothing_and_an_old_one_tells_nothing_more() -> None:
    seen = PrefixMap()
    seen.event(event(1, [b"1" * 16, b"2" * 16]))
    seen.event(event(1, [b"3" * 16], epoch=2))
    seen.event(event(2, [b"4" * 16]))

    assert {A: 1} == seen.num_blocks()
    assert not seen.is_stale(A)
    seen.forget(A)
    assert {} == seen.num_blocks()


def test_memory_is_bounded() -> None:
    seen = PrefixMap(max_num_blocks=3)
    for number in range(1, 9):
        seen.event(event(number, [bytes([number, each] * 8) for each in range(2)]))
    assert {A: 3} == seen.num_blocks()
    seen.event(event(20, []))
    seen.begin(A)
    for number in range(21, 2000):
        seen.event(event(number, []))

    assert not seen.gather(KnownBlocks(A, 1, 20, b"1" * 16 * 9)), "too many events meanwhile"
    seen.begin(A)
    assert seen.gather(KnownBlocks(A, 1, 2000, b"".join(bytes([each] * 16) for each in range(9))))
    assert {A: 3} == seen.num_blocks()


def test_a_class_of_kv_is_read_as_it_is_written() -> None:
    parts = KvClass("model", "a layout of=words", "int8/kv-int8/avx2|odd")

    assert parts == KvClass.parse(str(parts))
    assert None is KvClass.parse("model|layout")
