"""Which block holds which chain of tokens. Pure: knows neither states nor leases."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from slipstream.shared.kv.block_hash import BYTES_PER_TOKEN, BlockHash, BlockHasher, PrefixKeys

_MAX_NUM_PARTS = 8


@dataclass(frozen=True, slots=True)
class PrefixRoot:
    """Where the chains under one set of keys begin."""

    packed_keys: bytes
    block_hash: BlockHash


@dataclass(eq=False, slots=True)
class IndexedBlock:
    """A full block in the index; as a parent it stands for all tokens up to its end."""

    block_id: int
    block_hash: BlockHash
    tokens: bytes
    parent: "Prefix"
    children: "set[IndexedBlock]" = field(default_factory=set)


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
    compared by its keys, every other parent is itself the result of a comparison.
    """

    def __init__(self, hasher: BlockHasher) -> None:
        self._hasher = hasher
        self._by_hash: dict[BlockHash, list[IndexedBlock]] = {}
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
        """Return the block with these tokens after a prefix."""
        return self._child(self._hasher.child(parent.block_hash, tokens), parent, tokens)

    def child_or_add(self, parent: Prefix, block_id: int, tokens: bytes) -> IndexedBlock:
        """Return the block with these tokens after a prefix, which must be known, or add one."""
        block_hash = self._hasher.child(parent.block_hash, tokens)  # once: it is what this costs
        known = self._child(block_hash, parent, tokens)
        return known or self._add(block_hash, parent, block_id, tokens)

    def find(self, root: PrefixRoot, blocks: Iterable[bytes]) -> list[IndexedBlock]:
        """Return the longest known chain."""
        found: list[IndexedBlock] = []
        parent: Prefix = root
        bucket_of = self._by_hash.get
        for block_hash, tokens in self._hasher.chain(root.block_hash, blocks):
            for each in bucket_of(block_hash, ()):
                if each.tokens == tokens and each.parent == parent:
                    break
            else:
                break
            found.append(each)
            parent = each
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

    def add(self, parent: Prefix, block_id: int, tokens: bytes) -> IndexedBlock:
        """Make a block findable after a prefix that is known and has no such child yet."""
        return self._add(self._hasher.child(parent.block_hash, tokens), parent, block_id, tokens)

    def _child(self, block_hash: BlockHash, parent: Prefix, tokens: bytes) -> IndexedBlock | None:
        for each in self._by_hash.get(block_hash, ()):
            if each.parent == parent and each.tokens == tokens:
                return each
        return None

    def _add(
        self, block_hash: BlockHash, parent: Prefix, block_id: int, tokens: bytes
    ) -> IndexedBlock:
        assert block_id not in self._by_block, f"block {block_id} is indexed already"
        assert self.is_known(parent), f"the parent of block {block_id} is not in the index"
        block = IndexedBlock(block_id, block_hash, tokens, parent)
        self._by_block[block_id] = block
        self._by_hash.setdefault(block_hash, []).append(block)
        if isinstance(parent, IndexedBlock):
            parent.children.add(block)
        return block

    def remove(self, block_id: int) -> list[int]:
        """Forget a block and all that hang below it; return their ids."""
        top = self._by_block[block_id]
        if isinstance(top.parent, IndexedBlock):
            top.parent.children.discard(top)
        removed = []
        waiting = [top]
        while waiting:
            block = waiting.pop()
            waiting += block.children
            self._forget(block)
            removed.append(block.block_id)
        self.num_removed += len(removed)
        return removed

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

    def problems(self) -> list[str]:
        """Return what contradicts itself; empty when the index is right."""
        hashed = [block for bucket in self._by_hash.values() for block in bucket]
        found = []
        if {block.block_id for block in hashed} != set(self._by_block) or len(hashed) != len(self):
            found.append(f"{len(hashed)} blocks are found by hash, {len(self)} by id")
        found += [
            f"block {block.block_id} is indexed after a block that is not"
            for block in hashed
            if not self.is_known(block.parent)
        ]
        found += [
            f"block {block.block_id} is not among its parent's children"
            for block in hashed
            if isinstance(block.parent, IndexedBlock) and block not in block.parent.children
        ]
        return found

    def _forget(self, block: IndexedBlock) -> None:
        del self._by_block[block.block_id]
        bucket = self._by_hash[block.block_hash]
        bucket.remove(block)
        if not bucket:
            del self._by_hash[block.block_hash]


def _num_common_tokens(first: bytes, second: bytes) -> int:
    num_bytes = min(len(first), len(second))
    differing = int.from_bytes(first[:num_bytes], "little") ^ int.from_bytes(
        second[:num_bytes], "little"
    )
    if differing == 0:
        return num_bytes // BYTES_PER_TOKEN
    first_bit = (differing & -differing).bit_length() - 1
    return first_bit // (8 * BYTES_PER_TOKEN)
