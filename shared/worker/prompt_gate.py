"""When prompts may lease blocks: not before they are about to be computed."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from slipstream.shared.scheduling.prompt_window import SHORT_PART
from slipstream.shared.worker.report_book import Attempt

# Who has waited here for so long goes first, however urgent the others are.
AGED_S = 20.0

Rank = tuple[int, float]  # priority, then who came first: the greater is the more important


@dataclass(eq=False)
class Claim:
    """A prompt that waits, or is inside."""

    attempt: Attempt
    rank: Rank
    num_tokens: int  # still to be computed
    is_passing: bool = False  # it went in beside one that is much longer
    came_at: float = field(default_factory=time.monotonic)
    turn: asyncio.Event = field(default_factory=asyncio.Event)


def admitted(
    inside: Iterable[Claim], waiting: Iterable[Claim], max_num_tokens: int, aged_since: float = 0.0
) -> list[Claim]:
    """
    Return who of those waiting may enter, marking those that pass others. Pure but for the marks.

    In the order of their rank, while less than `max_num_tokens` are to be computed inside: so what
    is leased is computed next, and the next one is there when a step has rows left. What is inside
    at a lower priority doesn't count. Prompts that are much shorter than what is inside have as
    much room of their own: none waits for a long one. Who came before `aged_since` goes first.
    """
    entered: list[Claim] = []
    num_passing = sum(each.num_tokens for each in inside if each.is_passing)
    first = [each for each in inside if not each.is_passing]
    order = sorted(waiting, key=lambda each: each.rank, reverse=True)
    order.sort(key=lambda each: min(each.came_at, aged_since))
    for claim in order:
        is_aged = claim.came_at < aged_since
        num_first = sum(
            each.num_tokens for each in first if is_aged or each.rank[0] >= claim.rank[0]
        )
        if num_first < max_num_tokens:
            first.append(claim)
        elif is_aged:
            break  # nobody goes in before it
        elif num_passing < max_num_tokens and claim.num_tokens * SHORT_PART <= num_first:
            num_passing += claim.num_tokens
            claim.is_passing = True
        else:
            continue
        entered.append(claim)
    return entered


class PromptGate:
    """Owns who is inside: whoever has entered says how far it is, and leaves."""

    def __init__(self, max_num_tokens: int) -> None:
        self._max_num_tokens = max_num_tokens
        self._inside: dict[Attempt, Claim] = {}
        self._waiting: dict[Attempt, Claim] = {}

    @property
    def num_inside(self) -> int:
        """Prompts that may hold blocks."""
        return len(self._inside)

    @property
    def num_waiting(self) -> int:
        """Prompts that hold no blocks yet."""
        return len(self._waiting)

    async def enter(self, attempt: Attempt, rank: Rank, num_tokens: int, timeout_s: float) -> bool:
        """Enter when it is the prompt's turn; False when it isn't within a time. Repeatable."""
        if attempt in self._inside:
            return True
        claim = self._waiting.get(attempt)
        if claim is None:
            claim = self._waiting[attempt] = Claim(attempt, rank, num_tokens)
            self._let_in()
        try:
            async with asyncio.timeout(timeout_s):
                await claim.turn.wait()
        except TimeoutError:
            return False
        return True

    def update(self, attempt: Attempt, num_tokens: int) -> None:
        """Note how many tokens of a prompt are still to be computed."""
        claim = self._inside.get(attempt)
        if claim is not None and claim.num_tokens != num_tokens:
            claim.num_tokens = num_tokens
            self._let_in()

    def leave(self, attempt: Attempt) -> None:
        """Let others in: the prompt is computed, given up or waits elsewhere. Repeatable."""
        self._waiting.pop(attempt, None)
        if self._inside.pop(attempt, None) is not None:
            self._let_in()

    def _let_in(self) -> None:
        inside, waiting = self._inside.values(), self._waiting.values()
        aged_since = time.monotonic() - AGED_S
        for claim in admitted(inside, waiting, self._max_num_tokens, aged_since):
            del self._waiting[claim.attempt]
            self._inside[claim.attempt] = claim
            claim.turn.set()
