"""
A forward pass without weights, for tests of everything around it: `--engine fake`.

The next token is a hash of all tokens before it. Each KV slot keeps its token and a checksum of
its whole prefix, and every slot that a step reads is checked, so a wrong, stale or missing block
is caught at once. A step lasts as long as a stated cost model says, and writes at its end: whoever
is frozen inside of one writes when it wakes, as a real one does.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slipstream.shared.errors import SlipstreamError
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.model.splitmix import Words, mix

# 256 bytes, then <|im_start|>, <|im_end|> (which ends a sequence) and <|endoftext|>.
VOCAB_SIZE = 259
IM_START_TOKEN_ID, IM_END_TOKEN_ID, END_OF_TEXT_TOKEN_ID = 256, 257, 258
EOS_TOKEN_ID = IM_END_TOKEN_ID

# What outputs are made of, spaces often enough to look like words.
_ALPHABET = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz" * 2 + b" " * 10 + b"AEIOSTW", np.uint8)
_EOS_ONE_IN = np.uint64(256)

# The hashed token gets about nine tenths of the probability at temperature 1, other letters and
# the space share the rest, everything else is nearly impossible.
_PEAK_LOGIT = 8.0
_LETTER_LOGIT, _OTHER_LOGIT, _LOGIT_SPREAD = 0.0, -12.0, 2.0

# Odd, so that no power vanishes modulo 2^64.
_BASE = 0x5851F42D4C957F2D
_FIRST_POWERS = 4096


@dataclass(frozen=True, slots=True)
class FakeCosts:
    """
    How long a step lasts: `step + rows * row + context tokens read * context_token`.

    The context tokens of all sequences count, this step's rows among them.
    """

    step_ms: float = 0.0
    row_us: float = 0.0
    context_token_ns: float = 0.0

    def seconds(self, num_rows: int, num_context_tokens: int) -> float:
        """Return the duration of a step."""
        return (
            self.step_ms * 1e-3
            + num_rows * self.row_us * 1e-6
            + num_context_tokens * self.context_token_ns * 1e-9
        )


class FakeKvMismatchError(SlipstreamError):
    """A slot does not hold what its sequence wrote there: its block is wrong, stale or missing."""

    code = "kv_mismatch"

    def __init__(
        self, position: int, block_id: int, expected: tuple[int, int], found: tuple[int, int]
    ) -> None:
        self.position = position
        self.block_id = block_id
        self.expected = expected
        self.found = found
        super().__init__(
            f"position {position} in block {block_id} should hold token {expected[0]}"
            f" (prefix {expected[1]:016x}) and holds token {found[0]} (prefix {found[1]:016x})"
        )


class FakeRunner:
    """The `ModelRunner` of the fake engine over an arena of `KvLayout(kind="fake")`."""

    vocab_size = VOCAB_SIZE
    numerics = "fake"
    counters = None  # of a sleep there is nothing to tell

    def __init__(
        self, kv: memoryview, layout: KvLayout, num_blocks: int, costs: FakeCosts | None = None
    ) -> None:
        assert layout.kind == "fake", f"the fake engine can't use the layout {layout.fingerprint}"
        self.num_forwards = 0
        self._block_size = layout.block_size
        self._costs = costs or FakeCosts()
        words = np.frombuffer(kv, np.uint64, count=num_blocks * layout.block_bytes // 8)
        self._slots = words.reshape(num_blocks * layout.block_size, 2)
        self._hash_prefixes = _PrefixHasher()

    def forward(self, batch: Sequence[SequenceRows]) -> npt.NDArray[np.float32]:
        """Check what is read, write the rows and return their logits; see `ModelRunner`."""
        self.num_forwards += 1
        computed = [self._compute(rows) for rows in batch]
        num_rows = sum(rows.num_rows for rows in batch)
        num_context_tokens = sum(rows.context_len for rows in batch)
        seconds = self._costs.seconds(num_rows, num_context_tokens)
        if seconds > 0:
            time.sleep(seconds)
        for slots, written, _ in computed:
            self._slots[slots] = written
        return logits_after(np.concatenate([hashes for _, _, hashes in computed]))

    def rest(self) -> None:
        """Nothing is kept between passes."""

    def close(self) -> None:
        """Let go of the arena."""
        self._slots = np.empty((0, 2), np.uint64)

    def _compute(self, rows: SequenceRows) -> tuple[npt.NDArray[np.int64], Words, Words]:
        """
        Check what one sequence reads.

        Return its new slots, what belongs there, and the hashes of the prefixes that want logits.
        """
        token_ids = np.asarray(rows.token_ids, np.uint64)
        written = np.stack((token_ids, self._hash_prefixes(token_ids)), axis=1)
        slots = self._slot_mapping(rows)
        num_computed = rows.num_computed_tokens
        self._check(slots[:num_computed], written[:num_computed])
        hashes = written[rows.context_len - rows.num_logit_rows :, 1]
        return slots[num_computed:], written[num_computed:], hashes

    def _slot_mapping(self, rows: SequenceRows) -> npt.NDArray[np.int64]:
        num_covered = len(rows.block_table) * self._block_size
        assert num_covered >= rows.context_len, (
            f"{len(rows.block_table)} blocks don't cover {rows.context_len} tokens"
        )
        first_slots = np.asarray(rows.block_table, np.int64) * self._block_size
        return (first_slots[:, None] + np.arange(self._block_size)).ravel()[: rows.context_len]

    def _check(self, slots: npt.NDArray[np.int64], expected: Words) -> None:
        found = self._slots[slots]
        if np.array_equal(found, expected):
            return
        position = int((found != expected).any(axis=1).argmax())
        raise FakeKvMismatchError(
            position=position,
            block_id=int(slots[position]) // self._block_size,
            expected=(int(expected[position, 0]), int(expected[position, 1])),
            found=(int(found[position, 0]), int(found[position, 1])),
        )


class _PrefixHasher:
    """Hashes every prefix of a sequence at once: t_0 .. t_i to `mix(sum_j (t_j + 1) * base^j)`."""

    def __init__(self) -> None:
        self._powers = _powers(_FIRST_POWERS)

    def __call__(self, token_ids: Words) -> Words:
        """Return the hash of each prefix, the one that ends with a token at its index."""
        num_tokens = len(token_ids)
        if num_tokens > len(self._powers):
            self._powers = _powers(2 * num_tokens)
        terms = (token_ids + np.uint64(1)) * self._powers[:num_tokens]
        return mix(np.cumsum(terms, dtype=np.uint64))


def hash_prefix(token_ids: Sequence[int]) -> int:
    """Return the hash of a whole sequence, which decides on its next token."""
    return int(_PrefixHasher()(np.asarray(token_ids, np.uint64))[-1])


def next_token_id(token_ids: Sequence[int]) -> int:
    """Return the token that greedy decoding puts after these: what tests expect a stream to say."""
    return int(_next_tokens(np.array([hash_prefix(token_ids)], np.uint64))[0])


def logits_after(hashes: Words) -> npt.NDArray[np.float32]:
    """Return a row [vocab] for each prefix hash, the same for the same hash."""
    token_ids = np.arange(1, VOCAB_SIZE + 1, dtype=np.uint64)
    bits = mix(hashes[:, None] ^ mix(token_ids))
    logits = _BASE_LOGITS + (bits >> np.uint64(40)) * np.float32(_LOGIT_SPREAD * 2.0**-24)
    logits[np.arange(len(hashes)), _next_tokens(hashes)] = _PEAK_LOGIT
    return logits.astype(np.float32)


def _next_tokens(hashes: Words) -> npt.NDArray[np.int64]:
    bits = mix(~hashes)
    letters = _ALPHABET[(bits >> np.uint64(32)) % np.uint64(len(_ALPHABET))].astype(np.int64)
    return np.where(bits % _EOS_ONE_IN == 0, EOS_TOKEN_ID, letters)


def _powers(num_powers: int) -> Words:
    powers = np.full(num_powers, _BASE, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint64)


_BASE_LOGITS = np.full(VOCAB_SIZE, _OTHER_LOGIT, np.float32)
_BASE_LOGITS[np.unique(_ALPHABET)] = _LETTER_LOGIT
