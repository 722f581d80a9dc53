"""What a stack has served, and what it took: kept beside it by tests of who is served."""

import math
import time
from collections import Counter
from typing import Any

import pytest

from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion

from .service_stack import ServiceStack


class TokenBook:
    """Tokens that each tenant or class was served, those of what runs among them."""

    def __init__(self, stack: ServiceStack, key: str, *, counts_prompts: bool = True) -> None:
        self._desk = stack.desk
        self._key = key
        self._counts_prompts = counts_prompts
        self._answered: Counter[str] = Counter()

    def answered(self, name: str, answer: Completion) -> None:
        usage = answer.usage
        self._answered[name] += self._prompt(usage.num_prompt_tokens) + usage.num_output_tokens

    def served(self) -> Counter[str]:
        """Return the tokens of what was answered, and what is known of that which runs."""
        served = self._answered.copy()
        for record in self._desk.records.values():
            if record.phase != "waiting":
                num_prompt_tokens = self._prompt(len(record.request.prompt_token_ids))
                name = getattr(record.request, self._key)
                served[name] += num_prompt_tokens + len(record.token_ids)
        return served

    def waiting(self) -> set[str]:
        """Return whose requests wait."""
        return {getattr(each.request, self._key) for each in self._desk.load.waiting()}

    def _prompt(self, num_tokens: int) -> int:
        return num_tokens if self._counts_prompts else 0


def p95(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def time_refusals(stack: ServiceStack, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have the scheduler note how many milliseconds each refusal at the door takes it."""
    front = stack.one("scheduler")._front
    open_request, taken_ms = front.open_request, list[float]()

    async def timed(incoming: Any, **fields: Any) -> Any:
        began = time.perf_counter()
        opened = await open_request(incoming, **fields)
        if isinstance(opened, Failed):
            taken_ms.append((time.perf_counter() - began) * 1000)
        return opened

    monkeypatch.setattr(front, "open_request", timed)
    return taken_ms
