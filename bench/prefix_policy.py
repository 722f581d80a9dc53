"""
Measure how much of a real trace's prompts the prefix cache finds, by the order of eviction.

    python bench/prefix_policy.py --trace mooncake_conversation.jsonl --json prefix_policy.json

No model runs: the trace's requests go through the KV manager's own books, at the trace's times. The
trace names each 512 tokens of a prompt by a number, equal for equal tokens after an equal prefix.
A block of the books holds one token here, which is that number: it stands for 512 tokens. Only
whole ones can be found. A lease lives as long as the prompt's tokens that were not found take to
compute and those of the answer to come, at the speeds below; then it is committed and released
whole. A prompt that finds no room waits for the lease that ends first.

Sizes of the pool are shares of the distinct blocks in the trace. The flood puts prompts that are
asked once and have nothing in common among those of the trace, as long as these are; what is found
is counted for the trace alone. All is deterministic.
"""

import argparse
import json
import random
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

import msgspec

from slipstream.services.kv_manager.eviction import make_order
from slipstream.services.kv_manager.leases import LeaseBook
from slipstream.services.kv_manager.pool import BlockPool
from slipstream.services.kv_manager.prefix_cache import PrefixCache
from slipstream.services.kv_manager.prefix_index import PrefixIndex
from slipstream.shared.config import Eviction
from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.kv.block_hash import BlockHasher
from slipstream.shared.messages.kv import Commit, KvRefused, Lease, Leased, Release
from slipstream.shared.messages.packed import PackedInts

TOKENS_A_BLOCK = 512  # of the trace
PROMPT_TOKENS_A_S = 10_000
OUTPUT_TOKENS_A_S = 50
POLICIES: tuple[Eviction, ...] = ("lru", "filtered")
_WORKER, _EPOCH = WorkerId("w"), 1
_FOREVER_S = 1e9


class Request(msgspec.Struct, frozen=True):
    """A line of the trace."""

    timestamp: float  # ms
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    is_flood: bool = False


@dataclass(frozen=True)
class Found:
    """What was found of all prompts of the trace, and what it cost."""

    policy: str
    num_blocks: int
    is_flooded: bool
    percent: float
    num_evicted_blocks: int


class Replay:
    """Requests of a trace as leases of one book."""

    def __init__(self, num_blocks: int, policy: Eviction) -> None:
        index = PrefixIndex(BlockHasher())
        generations = array("I", [0] * (num_blocks + 1))
        pool = BlockPool(num_blocks, generations, index, make_order(policy, num_blocks))
        self.book = LeaseBook(pool, PrefixCache(index, 1), 1, _FOREVER_S)
        self.book.worker_joined(_WORKER, _EPOCH)
        self._ends: list[tuple[float, int, Leased, Request]] = []
        self._numbers = count()

    def run(self, requests: Sequence[Request]) -> float:
        """Return which share of the trace's prompt tokens was found, in percent."""
        num_tokens = num_found = 0
        for request in requests:
            now = request.timestamp / 1000
            while self._ends and self._ends[0][0] <= now:
                self._end_first()
            leased = self._lease(request, now)
            if not request.is_flood:
                num_tokens += request.input_length
                num_found += leased.num_cached_tokens * TOKENS_A_BLOCK
        assert not self.book.check_integrity()
        return 100 * num_found / num_tokens

    def _lease(self, request: Request, now: float) -> Leased:
        number = next(self._numbers)
        message = Lease(
            request_id=RequestId(str(number)),
            attempt=1,
            worker_id=_WORKER,
            worker_epoch=_EPOCH,
            num_blocks=len(request.hash_ids) + -(-request.output_length // TOKENS_A_BLOCK),
            layout="",
            token_ids=PackedInts(request.hash_ids),
        )
        while isinstance(leased := self.book.lease(message, now), KvRefused):
            if not self._ends:
                raise SystemExit(f"a pool of {self.book.pool.num_blocks} holds no such request")
            self._end_first()
        num_computed = request.input_length - leased.num_cached_tokens * TOKENS_A_BLOCK
        took_s = num_computed / PROMPT_TOKENS_A_S + request.output_length / OUTPUT_TOKENS_A_S
        heappush(self._ends, (now + took_s, number, leased, request))
        return leased

    def _end_first(self) -> None:
        _, number, leased, request = heappop(self._ends)
        num_whole = request.input_length // TOKENS_A_BLOCK
        commit = Commit(
            request_id=RequestId(str(number)),
            attempt=1,
            lease_id=leased.lease_id,
            worker_id=_WORKER,
            num_tokens=num_whole,
            token_ids=PackedInts(request.hash_ids[:num_whole]),
        )
        self.book.commit(commit, 0.0)
        release = Release(
            request_id=commit.request_id, attempt=1, lease_id=leased.lease_id, worker_id=_WORKER
        )
        self.book.release(release, 0)


def flooded(requests: Sequence[Request], share: float, seed: int) -> Iterator[Request]:
    """Yield a trace's requests, and among them prompts that share nothing with any other."""
    rng = random.Random(seed)
    fresh = 1 + max(block for request in requests for block in request.hash_ids)
    for request in requests:
        yield request
        while rng.random() < share:
            like = rng.choice(requests)
            ids = tuple(range(fresh, fresh + len(like.hash_ids)))
            fresh += len(ids)
            yield msgspec.structs.replace(
                like, timestamp=request.timestamp, hash_ids=ids, is_flood=True
            )


def measure(
    requests: Sequence[Request], sizes: Sequence[int], *, is_flooded: bool
) -> Iterator[Found]:
    """Yield what each order finds in each size, then what a pool without end would."""
    num_wanted = sum(
        len(each.hash_ids) + each.output_length // TOKENS_A_BLOCK + 1 for each in requests
    )
    for policy, size in [(each, size) for size in sizes for each in POLICIES]:
        replay = Replay(size, policy)
        percent = replay.run(requests)
        num_evicted = replay.book.prefixes.num_evicted_blocks
        yield Found(policy, size, is_flooded, percent, num_evicted)
    unlimited = Replay(num_wanted, "lru")
    yield Found("unlimited", num_wanted, is_flooded, unlimited.run(requests), 0)


def main() -> None:
    """Run all and print what was found."""
    options = _parse()
    lines = options.trace.read_bytes().splitlines()
    trace = [msgspec.json.decode(line, type=Request) for line in lines]
    distinct = len({block for request in trace for block in request.hash_ids})
    sizes = {share: round(distinct * share / 100) for share in options.sizes}
    mixed = list(flooded(trace, options.flood / 100, options.seed))
    found: list[Found] = []
    for is_flooded, requests in ((False, trace), (True, mixed)):
        for each in measure(requests, list(sizes.values()), is_flooded=is_flooded):
            print(f"==> {each}", file=sys.stderr)
            found.append(each)
    _print(sizes, found)
    if options.json:
        settings = {"sizes": sizes, "flood_percent": options.flood, "seed": options.seed}
        written = {"settings": settings, "found": [msgspec.to_builtins(each) for each in found]}
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Prompts found cached, by the order of eviction.")
    parser.add_argument("--trace", type=Path, required=True, help="a Mooncake trace")
    parser.add_argument(
        "--sizes", type=float, nargs="+", default=[1, 2, 5, 10, 20], metavar="PERCENT"
    )
    parser.add_argument("--flood", type=float, default=50, help="percent of all requests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    return parser.parse_args()


def _print(sizes: dict[float, int], found: Sequence[Found]) -> None:
    by_key = {(each.policy, each.num_blocks, each.is_flooded): each.percent for each in found}
    print("| blocks, of those in the trace | LRU | filtered | LRU, flood | filtered, flood |")
    print("|---|---|---|---|---|")
    for share, size in sizes.items():
        keys = [(policy, size, flood) for flood in (False, True) for policy in POLICIES]
        figures = " | ".join(f"{by_key[key]:.1f} %" for key in keys)
        print(f"| {size:,} ({share:g} %) | {figures} |")
    plain, flood = (each.percent for each in found if each.policy == "unlimited")
    print(f"| unlimited | {plain:.1f} % | | {flood:.1f} % | |")


if __name__ == "__main__":
    main()
