"""
A request for several choices: one request a choice, whose answers are joined again. Pure.

The id of choice i is the request's with `c<i>` behind it, and its seed comes from the request's
seed and i, that of the first being the request's own. So each choice can be had again alone.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import Failed, Timings, Usage
from slipstream.shared.messages.generate import Completion

_SEED_BITS = 63


def choice_id(request_id: RequestId, choice: int) -> RequestId:
    """Return the id of one choice of a request."""
    return RequestId(f"{request_id}c{choice}")


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of one choice."""
    if choice == 0:
        return seed
    digest = hashlib.blake2b(f"{seed} {choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - _SEED_BITS)


@dataclass
class ChoiceGroup:
    """The choices of one request, until all are answered."""

    request_id: RequestId
    seed: int
    num_choices: int
    completions: dict[int, Completion] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)  # choices whose record is closed
    is_answered: bool = False

    @property
    def ids(self) -> list[RequestId]:
        """The ids of the choices."""
        return [choice_id(self.request_id, choice) for choice in range(self.num_choices)]

    def take(self, answer: Completion | Failed, choice: int) -> Completion | Failed | None:
        """Take the answer of one choice; return the request's as soon as it is known, once."""
        if self.is_answered:
            return None
        if isinstance(answer, Failed):
            self.is_answered = True
            return msgspec.structs.replace(answer, request_id=self.request_id)
        self.completions[choice] = answer
        if len(self.completions) < self.num_choices:
            return None
        self.is_answered = True
        return join(self, [self.completions[each] for each in range(self.num_choices)])


def join(group: ChoiceGroup, completions: Sequence[Completion]) -> Completion:
    """Return one answer with all choices: what was generated adds up, the prompt counts once."""
    first = completions[0]
    choices = [
        msgspec.structs.replace(completion.choices[0], index=idx, seed=completion.seed)
        for idx, completion in enumerate(completions)
    ]
    return msgspec.structs.replace(
        first,
        request_id=group.request_id,
        attempt=max(each.attempt for each in completions),
        choices=choices,
        usage=_joined_usage([each.usage for each in completions]),
        timings=_joined_timings([each.timings for each in completions]),
        seed=group.seed,
    )


def _joined_usage(usages: Sequence[Usage]) -> Usage:
    sums = {name: sum(getattr(each, name) for each in usages) for name in Usage.__struct_fields__}
    sums["num_prompt_tokens"] = usages[0].num_prompt_tokens
    sums["num_cached_tokens"] = usages[0].num_cached_tokens
    return Usage(**sums)


def _joined_timings(timings: Sequence[Timings]) -> Timings:
    """Return when the first choice began to come and the last one ended."""
    slowest = [each.tpot_ms for each in timings if each.tpot_ms is not None]
    return Timings(
        queue_ms=min(each.queue_ms for each in timings),
        prefill_ms=max(each.prefill_ms for each in timings),
        hand_over_ms=max(each.hand_over_ms for each in timings),
        ttft_ms=min(each.ttft_ms for each in timings),
        tpot_ms=max(slowest, default=None),
        total_ms=max(each.total_ms for each in timings),
    )
