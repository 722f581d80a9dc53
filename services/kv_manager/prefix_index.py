"""Which block holds which chain of tokens. Pure: knows neither states nor leases."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from slipstream.services.kv_manager.slices import Sliced, batches
from slipstream.shared.kv.block_hash import BYTES_PER_TOKEN, BlockHash, BlockHasher, PrefixKeys

_MAX_NUM_PARTS = 8


@dataclass(frozen=True, slots=True)
class PrefixRoot:
    """Where the chains under one set of keys begin."""

    packed_keys: bytes
    block_hash: BlockHash


@dataclass(eq=False, slots=True)
class Run:
    """
    Blocks of which each comes after the one before it, and their tokens in one piece.

    What else comes after a block begins a run of its own, a branch. So a run only grows and loses
    at its end: whatever follows a block goes with it.
    """

    num_bytes: int  # of each block's tokens
    blocks: "list[IndexedBlock]" = field(default_factory=list)
    tokens: bytearray = field(default_factory=bytearray)

    def num_common(self, first: int, packed: bytes, start: int) -> int:
        """Return how many blocks, from the first on, hold the packed tokens from `start` on."""
        size = self.num_bytes
        most = min(len(self.blocks) - first, (len(packed) - start) // size)
        # All of it at once, for that is the common case; then halves.
        num_same, tried = 0, most
        while num_same < most:
            wanted = packed[start + num_same * size : start + tried * size]
            if self.tokens.startswith(wanted, (first + num_same) * size):
                num_same = tried
            else:
                most = tried - 1
            tried = num_same + (most - num_same + 1) // 2
        return num_same


@dataclass(eq=False, slots=True)
class IndexedBlock:
    """A full block in the index; as a parent it stands for all tokens up to its end."""

    block_id: int
    block_hash: BlockHash
    parent: "Prefix"
    run: Run
    place: int  # in its run
    branches: "set[IndexedBlock] | None" = None  # None: most blocks never have any

    @property
    def tokens(self) -> bytes:
        """The packed tokens, of a block that is still in the index."""
        start = self.place * self.run.num_bytes
        return bytes(self.run.tokens[start : start + self.run.num_bytes])

    @property
    def children(self) -> "Iterable[IndexedBlock]":
        """What comes right after it."""
        after = self.place + 1
        return chain(self.run.blocks[after : after + 1], self.branches or ())


Prefix = PrefixRoot | IndexedBlock


@dataclass(frozen=True, slots=True)
class PartBlock:
    """The first tokens of a block that goes on otherwise than wanted: good for a copy."""

    block_id: int
    num_tokens: int


class PrefixIndex:
    """
    A tree of full blocks, found by hash, believed by comparison.

    Equal tokens below the same parent are the same prefix, whatever the hashes say: a root is
    compared by its keys, every other parent is itself the result of a comparison. Where a run goes
    on, nothing but tokens is compared: only the head of a run is found by its hash (ADR 11).

    `changes` is told of each hash whether it has entered (True) or left last; whoever passes it
    empties it.
    """

    def __init__(self, hasher: BlockHasher, changes: dict[BlockHash, bool] | None = None) -> None:
        self._hasher = hasher
        self._changes = changes
        self._heads: dict[BlockHash, list[IndexedBlock]] = {}
        self._by_block: dict[int, IndexedBlock] = {}
        self.num_removed = 0

    def __len__(self) -> int:
        return len(self._by_block)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._by_block

    def root(self, keys: PrefixKeys) -> PrefixRoot:
        """Return the empty prefix under some keys."""
        packed = keys.packed()
        return PrefixRoot(packed, self._hasher.root(packed))

    def is_known(self, prefix: Prefix) -> bool:
        """Tell whether a prefix can still have children: a root always, a block while it stays."""
        if isinstance(prefix, PrefixRoot):
            return True
        return self._by_block.get(prefix.block_id) is prefix

    def child(self, parent: Prefix, tokens: bytes) -> IndexedBlock | None:
        """Return the block with these tokens after a prefix, which must be known."""
        # At the place of one that is gone its run may hold something else by now.
        assert self.is_known(parent), "nothing is found after a block that is not in the index"
        return self._next_in_run(parent, tokens) or self._head(parent, tokens)

    def find(self, root: PrefixRoot, packed: bytes, num_bytes: int) -> list[IndexedBlock]:
        """Return the longest known chain of the blocks, of so many bytes each, that are wanted."""
        found: list[IndexedBlock] = []
        parent: Prefix = root
        start = 0
        while start + num_bytes <= len(packed):
            head = self._head(parent, packed[start : start + num_bytes])
            if head is None:
                break
            start += num_bytes
            num_more = head.run.num_common(1, packed, start)
            start += num_more * num_bytes
            found += head.run.blocks[: 1 + num_more]
            parent = found[-1]
        return found

    def part(self, parent: Prefix, tokens: bytes) -> PartBlock | None:
        """
        Return the block after a prefix that begins like `tokens` the longest.

        Only a few are looked at: behind the system prompt of everybody there are too many.
        """
        if isinstance(parent, PrefixRoot):
            return None
        best = PartBlock(0, 0)
        for child in islice(parent.children, _MAX_NUM_PARTS):
            num_tokens = _num_common_tokens(child.tokens, tokens)
            if num_tokens > best.num_tokens:
                best = PartBlock(child.block_id, num_tokens)
        return best if best.num_tokens else None

    def extend(self, parent: Prefix, block_ids: Sequence[int], blocks: Iterable[bytes]) -> Prefix:
        """
        Make blocks findable, each after the one before it, the first after a prefix that is known.

        One whose tokens are known there already stays outside, and the one known takes its place.
        Return what comes last.
        """
        pairs = zip(block_ids, blocks, strict=False)
        for block_id, tokens in pairs:
            known = self.child(parent, tokens)
            if known is None:
                # After a new block nothing is known.
                return self._append(self.add(parent, block_id, tokens), pairs)
            parent = known
        return parent

    def add(self, parent: Prefix, block_id: int, tokens: bytes) -> IndexedBlock:
        """Make a block findable after a prefix that is known and has no such child yet."""
        assert block_id not in self._by_block, f"block {block_id} is indexed already"
        assert self.is_known(parent), f"the parent of block {block_id} is not in the index"
        if isinstance(parent, IndexedBlock) and parent is parent.run.blocks[-1]:
            return self._append(parent, [(block_id, tokens)])
        block_hash = self._hasher.child(parent.block_hash, tokens)
        head = IndexedBlock(block_id, block_hash, parent, Run(len(tokens)), 0)
        head.run.blocks.append(head)
        head.run.tokens += tokens
        self._by_block[block_id] = head
        self._heads.setdefault(block_hash, []).append(head)
        if self._changes is not None:
            self._changes[block_hash] = True
        if isinstance(parent, IndexedBlock):
            parent.branches = parent.branches or set()
            parent.branches.add(head)
        return head

    def remove(self, block_id: int) -> list[int]:
        """Forget a block and all that hang below it; return their ids."""
        removed, changes = [], self._changes
        waiting = [self._by_block[block_id]]
        while waiting:
            for block in self._cut(waiting.pop()):
                del self._by_block[block.block_id]
                removed.append(block.block_id)
                if changes is not None:
                    changes[block.block_hash] = False
                waiting += block.branches or ()
        self.num_removed += len(removed)
        return removed

    def hashes(self, first_block_id: int, end_block_id: int) -> list[BlockHash]:
        """Return the hashes of the blocks whose ids lie in a range."""
        found = map(self._by_block.get, range(first_block_id, end_block_id))
        return [block.block_hash for block in found if block is not None]

    def hash_of(self, block_id: int) -> BlockHash:
        """Return the hash of a block's content and all before it."""
        return self._by_block[block_id].block_hash

    def chain(self, block_id: int) -> list[IndexedBlock]:
        """Return a block and all before it, the first one first."""
        block: Prefix = self._by_block[block_id]
        found = []
        while isinstance(block, IndexedBlock):
            found.append(block)
            block = block.parent
        return found[::-1]

    def ancestors(self, block_id: int) -> Iterator[int]:
        """Yield the blocks before one, from its parent to the first."""
        parent = self._by_block[block_id].parent
        while isinstance(parent, IndexedBlock):
            yield parent.block_id
            parent = parent.parent

    def problems(self) -> Sliced[list[str]]:
        """Return what contradicts itself; empty when the index is right."""
        found = []
        for buckets in batches(list(self._heads.values())):
            found += [
                f"block {head.block_id} is found by its hash, and not by its id"
                for bucket in buckets
                for head in bucket
                if not self.is_known(head)
            ]
            yield
        all_blocks = list(self._by_block.values())
        yield
        for blocks in batches(all_blocks):
            for block in blocks:
                if self.is_known(block):  # by now it may be gone
                    found += self._problems_of(block)
            yield
        return found

    def _problems_of(self, block: IndexedBlock) -> list[str]:
        """Return what is wrong with a block in its run."""
        run, place, parent = block.run, block.place, block.parent
        found = []
        if place >= len(run.blocks) or run.blocks[place] is not block:
            found.append(f"block {block.block_id} stands at another place than it says")
        if not self.is_known(parent):
            found.append(f"block {block.block_id} is indexed after a block that is not")
        if place > 0:
            if run.blocks[place - 1] is not parent:
                found.append(f"block {block.block_id} comes after another than its parent")
            return found
        if block not in self._heads.get(block.block_hash, ()):
            found.append(f"block {block.block_id} is found by its id, and not by its hash")
        if isinstance(parent, IndexedBlock) and block not in (parent.branches or ()):
            found.append(f"block {block.block_id} is not among its parent's branches")
        if len(run.tokens) != len(run.blocks) * run.num_bytes:
            found.append(f"{len(run.blocks)} blocks from {block.block_id} on lack tokens")
        return found

    def _next_in_run(self, parent: Prefix, tokens: bytes) -> IndexedBlock | None:
        if isinstance(parent, PrefixRoot):
            return None
        run, place = parent.run, parent.place + 1
        # At the end of the run that compares with nothing, which no block's tokens are.
        if run.tokens[place * run.num_bytes : (place + 1) * run.num_bytes] != tokens:
            return None
        return run.blocks[place]

    def _head(self, parent: Prefix, tokens: bytes) -> IndexedBlock | None:
        """Return the head of a run with these tokens after a prefix."""
        if isinstance(parent, IndexedBlock) and not parent.branches:
            return None
        for each in self._heads.get(self._hasher.child(parent.block_hash, tokens), ()):
            if each.parent == parent and each.tokens == tokens:
                return each
        return None

    def _append(self, last: IndexedBlock, pairs: Iterable[tuple[int, bytes]]) -> IndexedBlock:
        """Add blocks behind the last one of a run."""
        run, hash_child, by_block = last.run, self._hasher.child, self._by_block
        changes = self._changes
        for block_id, tokens in pairs:
            assert block_id not in by_block, f"block {block_id} is indexed already"
            assert len(tokens) == run.num_bytes, f"{len(tokens)} bytes, not {run.num_bytes}"
            block_hash = hash_child(last.block_hash, tokens)
            last = IndexedBlock(block_id, block_hash, last, run, last.place + 1)
            by_block[block_id] = last
            run.blocks.append(last)
            run.tokens += tokens
            if changes is not None:
                changes[block_hash] = True
        return last

    def _cut(self, block: IndexedBlock) -> "list[IndexedBlock]":
        """Take a block and those after it out of its run; return them."""
        run, place = block.run, block.place
        cut = run.blocks[place:]
        del run.blocks[place:]
        del run.tokens[place * run.num_bytes :]
        if place == 0:
            self._forget_head(block)
        return cut

    def _forget_head(self, head: IndexedBlock) -> None:
        if isinstance(head.parent, IndexedBlock) and head.parent.branches:
            head.parent.branches.discard(head)
        bucket = self._heads[head.block_hash]
        bucket.remove(head)
        if not bucket:
            del self._heads[head.block_hash]


def _num_common_tokens(first: bytes, second: bytes) -> int:
    num_bytes = min(len(first), len(second))
    differing = int.from_bytes(first[:num_bytes], "little") ^ int.from_bytes(
        second[:num_bytes], "little"
    )
    if differing == 0:
        return num_bytes // BYTES_PER_TOKEN
    first_bit = (differing & -differing).bit_length() - 1
    return first_bit // (8 * BYTES_PER_TOKEN)
