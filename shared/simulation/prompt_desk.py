"""The prompts of a simulated worker: those at the gate, those inside, and their chunks."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from slipstream.shared.simulation.events import EventLoop
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.worker.chunks import PromptBudget, Waiting, share
from slipstream.shared.worker.prompt_gate import AGED_S, Claim, admitted
from slipstream.shared.worker.step_cost import Prompts, num_pairs


class Prompt:
    """A prompt on its worker."""

    __slots__ = ("claim", "num_computed", "num_tokens", "request")

    def __init__(self, request: SimulatedRequest, came_at: float) -> None:
        self.request = request
        self.num_tokens = request.num_prompt_tokens
        self.num_computed = 0
        rank = (request.job_priority, -request.arrived_at)
        self.claim = Claim((request.request_id, 1), rank, self.num_tokens, came_at=came_at)


class Chunk(NamedTuple):
    """A prompt's part of a step."""

    prompt: Prompt
    num_rows: int


class Chunks(NamedTuple):
    """What a step computes of prompts, and what it costs by."""

    parts: list[Chunk]
    shape: Prompts
    num_context_tokens: int


NO_CHUNKS = Chunks([], Prompts(0, 0.0), 0)


class PromptDesk:
    """Lets prompts in as the gate of a live worker does, and shares steps among them."""

    def __init__(
        self,
        loop: EventLoop,
        max_num_tokens: int,
        lease_s: float,
        is_leased: Callable[[], None],
    ) -> None:
        """`is_leased` hears that another prompt can be computed."""
        self._loop = loop
        self._max_num_tokens = max_num_tokens
        self._lease_s = lease_s
        self._is_leased = is_leased
        self._waiting: dict[Claim, Prompt] = {}
        self._inside: dict[Claim, Prompt] = {}
        self.ready: list[Prompt] = []  # they have blocks

    def __len__(self) -> int:
        return len(self._waiting) + len(self._inside)

    def add(self, request: SimulatedRequest) -> None:
        """Let a prompt wait for its turn."""
        prompt = Prompt(request, self._loop.now)
        self._waiting[prompt.claim] = prompt
        self._let_in()

    def plan(self, prompts: Sequence[Prompt], budget: PromptBudget) -> Chunks:
        """Return what the next step computes of some that have blocks, the first of them first."""
        waiting = [
            Waiting(each.num_computed, each.num_tokens - each.num_computed) for each in prompts
        ]
        parts = [
            Chunk(prompt, num_rows)
            for prompt, num_rows in zip(prompts, share(waiting, budget), strict=True)
            if num_rows
        ]
        shape = Prompts(
            sum(each.num_rows for each in parts),
            math.fsum(num_pairs(each.prompt.num_computed, each.num_rows) for each in parts),
        )
        context = sum(each.prompt.num_computed + each.num_rows for each in parts)
        return Chunks(parts, shape, context)

    def computed(self, chunks: Chunks) -> list[SimulatedRequest]:
        """Take in that a step is done; return those whose prompt is complete."""
        done = []
        for prompt, num_rows in chunks.parts:
            prompt.num_computed += num_rows
            prompt.claim.num_tokens -= num_rows
            if prompt.num_computed == prompt.num_tokens:
                done.append(prompt)
        if done:
            self.ready = [each for each in self.ready if each.claim.num_tokens]
            for prompt in done:
                del self._inside[prompt.claim]
        self._let_in()
        return [each.request for each in done]

    def _let_in(self) -> None:
        if not self._waiting:
            return
        aged_since = self._loop.now - AGED_S
        for claim in admitted(self._inside, self._waiting, self._max_num_tokens, aged_since):
            prompt = self._inside[claim] = self._waiting.pop(claim)
            self._loop.after(self._lease_s, partial(self._lease, prompt))

    def _lease(self, prompt: Prompt) -> None:
        self.ready.append(prompt)
        self._is_leased()
