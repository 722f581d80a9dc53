"""What lengths alone say of batches and of the KV cache. Pure."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from slipstream.shared.kv.layout import BLOCK_SIZE
from slipstream.shared.measure.load.traces import Lengths

T = TypeVar("T")


def groups(items: Sequence[T], num_seats: int) -> list[Sequence[T]]:
    """Return the groups that take all seats, one after another."""
    return [items[first : first + num_seats] for first in range(0, len(items), num_seats)]


def pad(group: Sequence[Lengths], max_num_tokens: int) -> list[Lengths]:
    """Return the longest prompt and the longest answer for each, as far as both fit."""
    prompt = max(each.num_prompt_tokens for each in group)
    output = max(each.num_output_tokens for each in group)
    prompts = [max(each.num_prompt_tokens, min(prompt, max_num_tokens - output)) for each in group]
    return [Lengths(each, min(output, max_num_tokens - each)) for each in prompts]


def static_steps(lengths: Sequence[Lengths], num_seats: int) -> int:
    """Return the decode steps of groups of which each waits for its longest answer."""
    return sum(
        max(each.num_output_tokens for each in group) for group in groups(lengths, num_seats)
    )


def continuous_steps(lengths: Sequence[Lengths], num_seats: int) -> int:
    """Return the decode steps when each seat takes the next request as soon as it is free."""
    free_at = [0] * num_seats
    for each in lengths:
        heapq.heapreplace(free_at, free_at[0] + each.num_output_tokens)
    return max(free_at)


def last_block_share(lengths: Sequence[Lengths]) -> float:
    """Return the part of the slots that is empty in last blocks, over all steps that decode."""
    contexts = [
        context
        for each in lengths
        for context in range(each.num_prompt_tokens + 1, each.num_tokens + 1)
    ]
    num_empty = sum(-context % BLOCK_SIZE for context in contexts)
    return num_empty / (sum(contexts) + num_empty)


def limits(lengths: Sequence[Lengths], num_seats: int, max_num_tokens: int) -> dict[str, float]:
    """Return what batching can gain by the lengths alone, as if every step took the same."""
    num_static = static_steps(lengths, num_seats)
    num_continuous = continuous_steps(lengths, num_seats)
    num_output = sum(each.num_output_tokens for each in lengths)
    num_prompt = sum(each.num_prompt_tokens for each in lengths)
    padded = [each for group in groups(lengths, num_seats) for each in pad(group, max_num_tokens)]
    return {
        "decode steps, static": num_static,
        "decode steps, continuous": num_continuous,
        "static / continuous": num_static / num_continuous,
        "the same without end": num_static * num_seats / num_output,
        "prompts padded / not": sum(each.num_prompt_tokens for each in padded) / num_prompt,
        "% of slots in last blocks": 100 * last_block_share(lengths),
    }


@dataclass(frozen=True, slots=True)
class Progress:
    """A request that has a seat, and how much of its answer is there."""

    lengths: Lengths
    num_output_tokens: int

    @property
    def is_prompt(self) -> bool:
        """Its prompt waits, or is being computed."""
        return self.num_output_tokens == 0

    @property
    def num_tokens(self) -> int:
        """Tokens that it has so far."""
        return self.lengths.num_prompt_tokens + self.num_output_tokens

    @property
    def num_whole_prompt_blocks(self) -> int:
        """Blocks that are committed when the prompt is computed."""
        return self.lengths.num_prompt_tokens // BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Slots:
    """
    Slots of the allocated blocks at one moment, or summed over several.

    Three kinds are empty: `tails` in the last block of each table; `prompts`, whose token has no KV
    yet; `ahead`, granted to the worker before a sequence needs them, or of a request that has just
    ended.
    """

    allocated: int = 0
    tails: int = 0
    prompts: int = 0
    ahead: int = 0

    def __add__(self, other: "Slots") -> "Slots":
        """Return both together."""
        return Slots(
            self.allocated + other.allocated,
            self.tails + other.tails,
            self.prompts + other.prompts,
            self.ahead + other.ahead,
        )

    def percent(self, num_slots: int) -> float:
        """Return a part of the allocated ones."""
        return 100 * num_slots / self.allocated if self.allocated else 0.0


def slots_of(num_blocks: int, num_committed_blocks: int, requests: Sequence[Progress]) -> Slots:
    """
    Tell what the allocated blocks hold, by what is known of the requests that have a seat.

    A prompt has all its blocks before it is computed; how far it is shows in the blocks that are
    committed beyond those of prompts that are done.
    """
    num_done = sum(each.num_whole_prompt_blocks for each in requests if not each.is_prompt)
    num_prompt_tokens = sum(each.num_tokens for each in requests if each.is_prompt)
    num_computed = max(0, num_committed_blocks - num_done) * BLOCK_SIZE
    tails = sum(-each.num_tokens % BLOCK_SIZE for each in requests)
    num_slots = num_blocks * BLOCK_SIZE
    num_in_tables = sum(each.num_tokens for each in requests) + tails
    return Slots(
        allocated=num_slots,
        tails=tails,
        prompts=max(0, num_prompt_tokens - num_computed),
        ahead=max(0, num_slots - num_in_tables),
    )
