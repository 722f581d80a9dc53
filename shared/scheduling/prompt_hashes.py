"""The block hashes of a prompt, as the KV managers make them. Pure."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from slipstream.shared.ids import HostId
from slipstream.shared.kv.block_hash import BYTES_PER_TOKEN, BlockHash, BlockHasher, PrefixKeys
from slipstream.shared.kv.kv_class import KvClass
from slipstream.shared.kv.layout import BLOCK_SIZE
from slipstream.shared.messages.packed import PackedInts

_HASHER = BlockHasher()


class _Chain:
    """The hashes of full blocks under one set of keys, each made when somebody looks for it."""

    def __init__(self, root: BlockHash, packed: bytes, block_size: int) -> None:
        self._root = root
        self._packed = packed
        self._block_bytes = block_size * BYTES_PER_TOKEN
        # The last token is computed whatever is cached.
        self._max_num = max(0, len(packed) - BYTES_PER_TOKEN) // self._block_bytes
        self._hashes: list[BlockHash] = []

    def num_known(self, known: AbstractSet[bytes]) -> int:
        """Return how many blocks from the first on are known."""
        num = 0
        for each in self._hashes:
            if each not in known:
                return num
            num += 1
        while num < self._max_num and self._make_next() in known:
            num += 1
        return num

    def _make_next(self) -> BlockHash:
        hashes, size = self._hashes, self._block_bytes
        start = len(hashes) * size
        parent = hashes[-1] if hashes else self._root
        hashes.append(_HASHER.child(parent, self._packed[start : start + size]))
        return hashes[-1]


class PromptHashes:
    """
    A prompt's chains, one for each class of KV.

    Hashing goes as far as hosts know the prompt and one block on, so a new prompt costs one hash.
    """

    def __init__(
        self, token_ids: PackedInts, cache_salt: str = "", block_size: int = BLOCK_SIZE
    ) -> None:
        self._token_ids = token_ids
        self._cache_salt = cache_salt
        self._block_size = block_size
        self._chains: dict[str, _Chain | None] = {}
        # What it was found by last, and what was: it is asked for at each look at the queue.
        self.found: tuple[object, Mapping[HostId, int]] | None = None

    def num_cached_tokens(self, kv_class: str, known: AbstractSet[bytes]) -> int:
        """Return how many tokens, from the first on, stand in known blocks."""
        if kv_class not in self._chains:
            self._chains[kv_class] = self._chain(kv_class)
        chain = self._chains[kv_class]
        return chain.num_known(known) * self._block_size if chain is not None else 0

    def _chain(self, kv_class: str) -> _Chain | None:
        parsed = KvClass.parse(kv_class)
        if parsed is None or len(self._token_ids) <= self._block_size:
            return None
        keys = PrefixKeys(
            layout=parsed.layout,
            model=parsed.model_fingerprint,
            numerics=parsed.numerics,
            cache_salt=self._cache_salt,
        )
        root = _HASHER.root(keys.packed())
        return _Chain(root, self._token_ids.to_bytes(), self._block_size)
