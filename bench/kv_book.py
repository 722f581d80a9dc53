"""
Measure how long the KV manager's books take over one message, in a pool that is full of prefixes.

    python bench/kv_book.py --blocks 100000 --tokens 2048 --samples 2000 --json FILE

All blocks are cached when it begins, so that whoever leases for a new prompt evicts as many as it
needs: the steady state of a busy host. Messages are made beforehand; NATS and msgpack are left out.
"""

import argparse
import random
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from results import heading, make_parser, microseconds, row, write_results

from slipstream.services.kv_manager.eviction import make_order
from slipstream.services.kv_manager.leases import LeaseBook
from slipstream.services.kv_manager.pool import BlockPool
from slipstream.services.kv_manager.prefix_cache import PrefixCache
from slipstream.services.kv_manager.prefix_index import PrefixIndex
from slipstream.shared.ids import LeaseId, RequestId, WorkerId
from slipstream.shared.kv.block_hash import BlockHash, BlockHasher
from slipstream.shared.kv.layout import BLOCK_SIZE
from slipstream.shared.messages.common import Message
from slipstream.shared.messages.kv import (
    Commit,
    Committed,
    Grant,
    Granted,
    Lease,
    Leased,
    Match,
    Matched,
    Release,
    Released,
)
from slipstream.shared.messages.packed import PackedInts

_WORKER, _EPOCH = WorkerId("decode"), 1
_NUM_GRANTED = 16
_LEASE_S = 30.0

AnswerT = TypeVar("AnswerT", bound=Message)
Samples = dict[str, list[int]]  # nanoseconds, by the name of what was done


@dataclass
class FullBook:
    """A lease book whose pool holds nothing but known prompts, and what it takes over messages."""

    num_blocks: int
    num_tokens: int  # of each prompt
    hasher: BlockHasher = field(default_factory=BlockHasher)
    clock: Callable[[], int] = time.perf_counter_ns
    samples: Samples = field(default_factory=lambda: defaultdict(list))
    is_telling: bool = True  # the index notes what others are to be told

    def __post_init__(self) -> None:
        self._changes: dict[BlockHash, bool] | None = {} if self.is_telling else None
        index = PrefixIndex(self.hasher, self._changes)
        generations = array("I", [0] * (self.num_blocks + 1))
        order = make_order("filtered", self.num_blocks)
        pool = BlockPool(self.num_blocks, generations, index, order)
        self.book = LeaseBook(pool, PrefixCache(index, BLOCK_SIZE), BLOCK_SIZE, _LEASE_S)
        self.book.worker_joined(_WORKER, _EPOCH)
        self._random = random.Random(self.num_blocks)
        self._num_requests = 0
        self.num_prompt_blocks = self.num_tokens // BLOCK_SIZE
        # The least recently used first: it is evicted first.
        num_prompts = self.num_blocks // self.num_prompt_blocks
        self._known: deque[PackedInts] = deque(maxlen=num_prompts)
        for _ in range(num_prompts):
            self._write(self.prompt())
        self.samples.clear()

    def prompt(self) -> PackedInts:
        """Return tokens that nobody has seen."""
        return PackedInts.from_bytes(self._random.randbytes(4 * self.num_tokens))

    def known(self) -> PackedInts:
        """Return a prompt that is cached: one of those written last."""
        return self._known[-1 - self._random.randrange(len(self._known) // 2)]

    def match(self, prompt: PackedInts, name: str) -> int:
        """Look a prompt up; return how many of its tokens are known."""
        message = Match(token_ids=prompt, layout="")
        return self._timed(name, Matched, lambda: self.book.match(message, 0.0)).num_cached_tokens

    def lease(self, prompt: PackedInts, name: str) -> tuple[Leased, RequestId]:
        """Lease blocks for a prompt."""
        self._num_requests += 1
        request_id = RequestId(str(self._num_requests))
        message = Lease(
            request_id=request_id,
            attempt=1,
            worker_id=_WORKER,
            worker_epoch=_EPOCH,
            num_blocks=self.num_prompt_blocks,
            layout="",
            token_ids=prompt,
        )
        return self._timed(name, Leased, lambda: self.book.lease(message, 0.0)), request_id

    def commit(self, lease_id: LeaseId, request_id: RequestId, prompt: PackedInts) -> None:
        """Commit all blocks of a prompt."""
        message = Commit(
            request_id=request_id,
            attempt=1,
            lease_id=lease_id,
            worker_id=_WORKER,
            num_tokens=len(prompt),
            token_ids=prompt,
        )
        self._timed("commit", Committed, lambda: self.book.commit(message, 0.0))

    def release(self, lease_id: LeaseId, request_id: RequestId) -> None:
        """End a lease."""
        message = Release(request_id=request_id, attempt=1, lease_id=lease_id, worker_id=_WORKER)
        self._timed("release", Released, lambda: self.book.release(message, 0.0))

    def grant(self) -> None:
        """Grant blocks ahead of need, and give them back."""
        ask = Grant(worker_id=_WORKER, worker_epoch=_EPOCH, num_blocks=_NUM_GRANTED)
        granted = self._timed("grant", Granted, lambda: self.book.grant(ask, 0.0))
        back = Grant(worker_id=_WORKER, worker_epoch=_EPOCH, num_blocks=0, returned=granted.blocks)
        self._timed("grants returned", Granted, lambda: self.book.grant(back, 0.0))

    def round(self) -> None:
        """Do everything once."""
        self.match(self.known(), "match, known")
        self.match(self.prompt(), "match, new")
        leased, request_id = self.lease(self.known(), "lease, known")
        self.release(leased.lease_id, request_id)
        self._write(self.prompt())
        self.grant()
        if self._changes:
            self._changes.clear()  # they were told

    def _write(self, prompt: PackedInts) -> None:
        leased, request_id = self.lease(prompt, "lease, new")
        self.commit(leased.lease_id, request_id, prompt)
        self.release(leased.lease_id, request_id)
        self._known.append(prompt)

    def _timed(self, name: str, kind: type[AnswerT], act: Callable[[], Message]) -> AnswerT:
        began = self.clock()
        answer = act()
        self.samples[name].append(self.clock() - began)
        assert isinstance(answer, kind), answer
        return answer


def measure(options: argparse.Namespace) -> Samples:
    """Take the samples."""
    clock = time.thread_time_ns if options.own_time else time.perf_counter_ns
    book = FullBook(
        options.blocks, options.tokens, clock=clock, is_telling=not options.without_events
    )
    for _ in range(options.samples):
        book.round()
    problems = book.book.check_integrity()
    assert not problems, problems[:5]
    return book.samples


def main() -> None:
    """Measure, print, write the file."""
    parser = make_parser(__doc__)
    parser.add_argument("--blocks", type=int, default=100_000, help="default: 100000")
    parser.add_argument("--tokens", type=int, default=2048, help="of a prompt (default: 2048)")
    parser.add_argument("--samples", type=int, default=2000, help="of each (default: 2000)")
    parser.add_argument(
        "--own-time",
        action="store_true",
        help="leave out what others on the machine take: time of this thread only",
    )
    parser.add_argument(
        "--without-events", action="store_true", help="note nothing that others are told"
    )
    options = parser.parse_args()
    figures = {name: microseconds(taken) for name, taken in measure(options).items()}
    print(heading())
    for name, each in figures.items():
        print(row(name, each))
    write_results(options, figures, "us")


if __name__ == "__main__":
    main()
