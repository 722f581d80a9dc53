"""A draft worker that knows what will be said, and proposes it wrongly in every way there is."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.common import Accepted, Failed
from slipstream.shared.messages.draft import (
    DraftJob,
    DraftOpen,
    DraftProposal,
    DraftTokens,
    DraftWant,
)
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import WorkerReport
from slipstream.shared.worker.report_book import Attempt

from .drafter import accepted

_VOCAB_SIZE = 49_152  # of the default model
_MAX_ID = 2**32 - 1
_END = 2  # end-of-sequence

# What a request says with its prompt's tokens in front of it.
Known = Sequence[tuple[Sequence[int], Sequence[int]]]


@dataclass(frozen=True)
class Wanted:
    """A want, and what will be said there."""

    want: DraftWant
    truth: list[int]


Manner = Callable[[Random, Sequence[Wanted]], list[bytes]]


class Liar:
    """Takes its manners one after another; of several each other answer is right, or half right."""

    def __init__(self, known: Known, manners: Sequence[str], seed: int, late_s: float) -> None:
        self._known = known
        self._manners = manners
        self._random = Random(seed)
        self._late_s = late_s
        self._turns: list[str] = []
        self._histories: dict[Attempt, list[int]] = {}
        self.num_times: Counter[str] = Counter()

    async def answers(self, message: DraftOpen | DraftJob) -> AsyncIterator[bytes]:
        """Yield what is sent."""
        if isinstance(message, DraftOpen):
            self._histories[message.request_id, message.attempt] = list(message.token_ids)
            yield accepted(message)
            return
        wanted = [Wanted(want, self._truth(want)) for want in message.wants]
        manner = self._next_manner()
        self.num_times[manner] += 1
        if manner == "late":
            await asyncio.sleep(self._late_s)
        for payload in MANNERS[manner](self._random, wanted):
            yield payload

    def _next_manner(self) -> str:
        if not self._turns:
            for manner in self._random.sample(self._manners, len(self._manners)):
                self._turns.append(manner)
                if len(self._manners) > 1:
                    self._turns.append(self._random.choice(("right", "half right")))
        return self._turns.pop()

    def _truth(self, want: DraftWant) -> list[int]:
        """Return what follows, as far as it is known."""
        history = self._histories.setdefault((want.request_id, want.attempt), [])
        first = 0 if want.is_whole else want.position - len(want.new_token_ids)
        history[first:] = want.new_token_ids
        for prompt, output in self._known:
            said = history[len(prompt) :]
            if history == [*prompt, *output[: len(said)]]:
                return list(output[len(said) :])
        return []


def _propose(wanted: Wanted, token_ids: Sequence[int], **changes: Any) -> DraftProposal:
    # Any: fields of a proposal, right and wrong ones
    fields: Mapping[str, Any] = {
        "request_id": wanted.want.request_id,
        "attempt": wanted.want.attempt,
        "position": wanted.want.position,
        "token_ids": PackedInts(token_ids),
    }
    return DraftProposal(**{**fields, **changes})


def _sent(*proposals: DraftProposal) -> list[bytes]:
    return [encode(DraftTokens(list(proposals)))]


def _wild(rng: Random, number: int) -> list[int]:
    return [rng.randrange(_VOCAB_SIZE) for _ in range(number)]


def _truth(each: Wanted, number: int | None = None) -> list[int]:
    return each.truth[: each.want.max_num_tokens if number is None else number]


def _half(rng: Random, each: Wanted, wrong: Callable[[int], list[int]]) -> list[int]:
    """Return a beginning that is right, and a rest that isn't, together as many as are wanted."""
    right = _truth(each, rng.randrange(each.want.max_num_tokens))
    return right + wrong(each.want.max_num_tokens - len(right))


def _right(_rng: Random, wanted: Sequence[Wanted]) -> list[bytes]:
    return _sent(*(_propose(each, _truth(each)) for each in wanted))


def _half_right(rng: Random, wanted: Sequence[Wanted]) -> list[bytes]:
    return _sent(*(_propose(each, _half(rng, each, lambda n: _wild(rng, n))) for each in wanted))


def _at_random(rng: Random, wanted: Sequence[Wanted]) -> list[bytes]:
    return _sent(*(_propose(each, _wild(rng, each.want.max_num_tokens)) for each in wanted))


def _shifted(_rng: Random, wanted: Sequence[Wanted]) -> list[bytes]:
    return _sent(*(_propose(each, each.truth[1 : each.want.max_num_tokens + 1]) for each in wanted))


def _ending(rng: Random, wanted: Sequence[Wanted]) -> list[bytes]:
    return _sent(*(_propose(each, _half(rng, each, lambda n: [_END] * n)) for each in wanted))


def _out_of_range(rng: Random, wanted: Sequence[Wanted]) -> list[bytes]:
    def wrong(number: int) -> list[int]:
        return [rng.choice((_VOCAB_SIZE, _MAX_ID, 2**31)) for _ in range(number)]

    return _sent(*(_propose(each, _half(rng, each, wrong)) for each in wanted))


def _too_many(rng: Random, wanted: Sequence[Wanted]) -> list[bytes]:
    """All of the answer, and more."""
    number = rng.choice((1, 64, 10_000))
    return _sent(*(_propose(each, each.truth + _wild(rng, 64 + number)) for each in wanted))


def _too_few(rng: Random, wanted: Sequence[Wanted]) -> list[bytes]:
    return _sent(*(_propose(each, _truth(each, rng.choice((0, 1)))) for each in wanted))


def _duplicate(rng: Random, wanted: Sequence[Wanted]) -> list[bytes]:
    """Each sequence twice, with other tokens, in a message that comes three times."""
    proposals = [
        _propose(each, token_ids)
        for each in wanted
        for token_ids in (_truth(each), _wild(rng, each.want.max_num_tokens))
    ]
    rng.shuffle(proposals)
    return 3 * _sent(*proposals)


def _others(rng: Random, wanted: Sequence[Wanted]) -> list[bytes]:
    """What is right for one sequence, for attempts that there aren't, or for the neighbour."""
    strange = [
        _propose(each, _truth(each), **change)
        for each in wanted
        for change in (
            {"request_id": RequestId("nobody")},
            {"attempt": each.want.attempt + 1},
            {"attempt": 0},
        )
    ]
    shifted = [*wanted[1:], *wanted[:1]] if len(wanted) > 1 else []
    swapped = [
        _propose(other, _truth(each, other.want.max_num_tokens))
        for each, other in zip(wanted, shifted, strict=False)
    ]
    return _sent(*rng.sample(strange + swapped, len(strange + swapped)))


def _elsewhere(rng: Random, wanted: Sequence[Wanted]) -> list[bytes]:
    """Right tokens for positions that were, or will be."""

    def position(want: DraftWant) -> int:
        return rng.choice((0, want.position - 1, want.position + 1, 2**63 - 1))

    return _sent(*(_propose(each, _truth(each), position=position(each.want)) for each in wanted))


def _lost(_rng: Random, wanted: Sequence[Wanted]) -> list[bytes]:
    return _sent(*(_propose(each, _truth(each), is_lost=True) for each in wanted))


def _odd_probabilities(rng: Random, wanted: Sequence[Wanted]) -> list[bytes]:
    odd = [math.nan, math.inf, -1.0, 2.0]
    return _sent(
        *(
            _propose(each, _half(rng, each, lambda n: _wild(rng, n)), probabilities=odd)
            for each in wanted
        )
    )


def _garbage(rng: Random, wanted: Sequence[Wanted]) -> list[bytes]:
    """Bytes, shapes and messages that are no answer to a job."""
    (whole,) = _right(rng, wanted)
    request_id = wanted[0].want.request_id
    report = WorkerReport(
        worker_id=WorkerId("x"), role="draft", epoch=1, number=1, num_seats=1, num_free_seats=1
    )
    return [
        rng.choice(
            (
                b"",
                rng.randbytes(rng.randrange(1, 300)),
                whole[: rng.randrange(1, len(whole))],
                whole.replace(b"draft_tokens", b"draft_job"),
                b"\xdd\xff\xff\xff\xff" + rng.randbytes(8),  # four billion of something
                b"\x91" * 100_000,  # lists in lists
                b"\x92\xacdraft_tokens\x91" + b"\x94\xa1r\x01\xff\xc4\x03abc",
                b'["draft_tokens",[["r",1,-1,[-1,1.5,"x"]]]]',
                b'{"type":"draft_tokens","proposals":[]}',
                encode(Accepted(request_id=request_id)),
                encode(Failed(code="no", message="", request_id=request_id)),
                encode(report),
            )
        )
    ]


def _silent(_rng: Random, _wanted: Sequence[Wanted]) -> list[bytes]:
    return []


MANNERS: Mapping[str, Manner] = {
    "right": _right,
    "half right": _half_right,
    "random": _at_random,
    "shifted": _shifted,
    "ending": _ending,
    "out of range": _out_of_range,
    "too many": _too_many,
    "too few": _too_few,
    "late": _right,
    "duplicate": _duplicate,
    "others": _others,
    "elsewhere": _elsewhere,
    "lost": _lost,
    "odd probabilities": _odd_probabilities,
    "garbage": _garbage,
    "silent": _silent,
}
# Of these no step may get to see a token.
UNUSABLE = frozenset({"out of range", "elsewhere", "garbage", "silent"})
