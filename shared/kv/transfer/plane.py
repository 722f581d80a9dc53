"""What every data plane is: blocks of one host's arena copied whole into another's."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slipstream.shared.errors import SlipstreamError
from slipstream.shared.kv.transfer.messages import (
    PROTOCOL_VERSION,
    FetchBlocks,
    Greeting,
    Hello,
    Welcome,
)

MAX_REQUEST_BYTES = 64 * 1024 * 1024  # of blocks in one question; larger transfers ask again
MAX_REQUEST_BLOCKS = 16_384  # what a question of a few hundred KB can name


class TransferError(SlipstreamError):
    """Blocks did not arrive; what their places hold now must not be used."""

    code = "transfer_error"


class TransferRefusedError(TransferError):
    """The source does not give these blocks; `reason` is its word, asking again can't help."""

    code = "transfer_refused"

    def __init__(self, reason: str, message: str = "") -> None:
        self.reason = reason
        super().__init__(f"{reason}: {message}" if message else reason)


class TransferIncompatibleError(TransferError):
    """The two hosts arrange or compute blocks differently; the message names both."""

    code = "transfer_incompatible"


class TransferTimeoutError(TransferError):
    """The deadline came first."""

    code = "transfer_timeout"


class TransferBrokenError(TransferError):
    """The connection broke, or bytes came damaged, more often than could be mended."""

    code = "transfer_broken"


@dataclass(frozen=True, slots=True)
class PlaneIdentity:
    """What two hosts compare before a byte of KV is sent; host and epoch only name them."""

    host_id: str
    epoch: int
    layout: str
    model_fingerprint: str
    block_bytes: int

    def hello(self) -> Hello:
        """Return how this host greets one that it asks."""
        return Hello(*self._fields())

    def welcome(self) -> Welcome:
        """Return how this host answers a greeting."""
        return Welcome(*self._fields())

    def _fields(self) -> tuple[int, str, str, int, str, int]:
        return (
            PROTOCOL_VERSION,
            self.layout,
            self.host_id,
            self.epoch,
            self.model_fingerprint,
            self.block_bytes,
        )

    def mismatch(self, other: Greeting) -> str | None:
        """Return what keeps the other's blocks from being ours, naming both sides, or None."""
        pairs = (
            ("transfer protocol", PROTOCOL_VERSION, other.version),
            ("layout", self.layout, other.layout),
            ("model", self.model_fingerprint, other.model_fingerprint),
            ("bytes of a block", self.block_bytes, other.block_bytes),
        )
        for what, mine, theirs in pairs:
            if mine != theirs:
                return (
                    f"{what} of host {self.host_id} is ({mine}), of host {other.host_id} ({theirs})"
                )
        return None


class BlockSource(Protocol):
    """What the serving side needs of the arena and of whoever knows its leases."""

    @property
    def identity(self) -> PlaneIdentity:
        """Who we are and how our blocks are arranged."""

    @property
    def blocks(self) -> memoryview:
        """All blocks, `identity.block_bytes` each."""

    @property
    def generations(self) -> memoryview:
        """The generation of each block (uint32); read from threads."""

    def may_read(
        self, lease_id: str, block_ids: Sequence[int], generations: Sequence[int]
    ) -> str | None:
        """Return None, or the reason why not. Called on the event loop, before and after."""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Whole blocks of a lease on the other host, in the order of their destinations."""

    transfer_id: str
    lease_id: str
    block_ids: Sequence[int]
    generations: Sequence[int]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a transfer took: blocks, their bytes, and how often missing ones were asked for anew."""

    num_blocks: int
    num_bytes: int
    num_resumes: int


class TransferPlane(Protocol):
    """The receiving side."""

    async def fetch(
        self, address: str, request: FetchRequest, into: Sequence[memoryview], deadline_s: float
    ) -> Fetched:
        """
        Copy blocks; `into[i]` is the writable place of the i-th.

        However this ends, nothing writes there any more once it has. Raises TransferRefusedError,
        TransferIncompatibleError, TransferTimeoutError, TransferBrokenError; ValueError for places
        that don't fit the request.
        """

    async def close(self) -> None:
        """End running transfers with TransferBrokenError and hang up."""


class Deadline:
    """One end for all waits of a transfer."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def remaining_s(self) -> float:
        """Seconds left; 0 or less afterwards."""
        return self._end - time.monotonic()

    def left(self, at_most: float = math.inf) -> float:
        """Return the seconds that a wait may take. Raises TransferTimeoutError when none are."""
        remaining = self.remaining_s
        if remaining <= 0:
            raise TransferTimeoutError(f"no complete transfer within {self.seconds:g} s")
        return min(remaining, at_most)


def why_refused(source: BlockSource, fetch: FetchBlocks) -> tuple[str, str] | None:
    """Return the reason and message for which a question is refused, or None."""
    num_blocks, num_pool_blocks = len(fetch.block_ids), len(source.generations)
    num_bytes = num_blocks * source.identity.block_bytes
    # One block may be larger than the limit: a question can't ask for less.
    if num_blocks > MAX_REQUEST_BLOCKS or (num_blocks > 1 and num_bytes > MAX_REQUEST_BYTES):
        return "too_large", f"{num_blocks} blocks ({num_bytes} bytes) in one question"
    if num_blocks == 0 or num_blocks != len(fetch.generations):
        return "invalid", f"{num_blocks} blocks with {len(fetch.generations)} generations"
    if not all(0 <= block_id < num_pool_blocks for block_id in fetch.block_ids):
        return "invalid", f"block ids end at {num_pool_blocks - 1}"
    reason = source.may_read(fetch.lease_id, fetch.block_ids, fetch.generations)
    if reason is not None:
        return reason, f"lease {fetch.lease_id} on host {source.identity.host_id}"
    if (block_id := first_stale(source, fetch)) is not None:
        return "stale_block", f"block {block_id} has been handed out anew"
    return None


def first_stale(source: BlockSource, fetch: FetchBlocks) -> int | None:
    """Return a block of the question whose generation is another by now, or None."""
    current = source.generations
    for block_id, generation in zip(fetch.block_ids, fetch.generations, strict=True):
        if current[block_id] != generation:
            return block_id
    return None
