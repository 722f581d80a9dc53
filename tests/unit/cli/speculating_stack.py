"""A stack that says how long its answers took, for the benchmark of speculation."""

from collections.abc import Callable
from dataclasses import dataclass, field

from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus
from slipstream.shared.bus.subjects import GENERATE
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import decode_request, encode
from slipstream.shared.messages.common import Timings, Usage
from slipstream.shared.messages.generate import Choice, Completion, GenerateRequest
from slipstream.shared.messages.packed import PackedInts

NUM_TOKENS = 61
STEP_MS = 4.0
MAX_NUM_DRAFTS = 4
Tokens = Callable[[GenerateRequest], list[int]]


def step_ratio(num_drafts: float) -> float:
    """Return what a step with drafts takes, in steps without."""
    return 1 + 0.1 * num_drafts


def counting(request: GenerateRequest) -> list[int]:
    """Return tokens none of which comes twice, others for each seed."""
    return [(request.seed or 0) * 1000 + idx for idx in range(NUM_TOKENS)]


@dataclass
class SpeculatingStack:
    """Answers at once; every step of a request with speculation verifies drafts."""

    tokens: Tokens = counting
    num_given: int = NUM_TOKENS
    requests: list[GenerateRequest] = field(default_factory=list)
    bus: Bus = field(default_factory=lambda: MemoryBus(MemoryBroker()))

    async def start(self) -> "SpeculatingStack":
        """Listen."""
        await self.bus.subscribe(GENERATE.subject(), self._answer)
        return self

    async def _answer(self, incoming: Incoming) -> None:
        request = decode_request(incoming.payload)
        self.requests.append(request)
        is_probe = request.prompt is not None
        token_ids = [97] * NUM_TOKENS if is_probe else self.tokens(request)
        num_given = min(self.num_given, request.max_tokens or NUM_TOKENS)
        usage, decode_ms = _plain() if request.speculation == "off" else _drafted(request)
        completion = Completion(
            request_id=RequestId("r"),
            attempt=1,
            choices=[
                Choice(
                    text="",
                    token_ids=PackedInts(token_ids[:num_given]),
                    finish_reason="length",
                )
            ],
            usage=usage,
            timings=Timings(tpot_ms=decode_ms / (NUM_TOKENS - 1)),
        )
        await self.bus.publish(incoming.reply, encode(completion))


def _plain() -> tuple[Usage, float]:
    usage = Usage(num_prompt_tokens=40, num_output_tokens=NUM_TOKENS)
    return usage, (NUM_TOKENS - 1) * STEP_MS


def _drafted(request: GenerateRequest) -> tuple[Usage, float]:
    """Accept everything in the probe, and half elsewhere."""
    length = min(request.num_speculative_tokens or MAX_NUM_DRAFTS, MAX_NUM_DRAFTS)
    num_later = NUM_TOKENS - 1
    if request.num_speculative_tokens is not None:
        num_steps = num_later // (length + 1)
        num_accepted = num_tested = num_steps * length
    else:
        num_steps, num_accepted, num_tested = 20, 40, 60
    usage = Usage(
        num_prompt_tokens=40,
        num_output_tokens=NUM_TOKENS,
        num_draft_steps=num_steps,
        num_drafted_tokens=num_steps * length,
        num_tested_tokens=num_tested,
        num_accepted_tokens=num_accepted,
    )
    return usage, num_steps * STEP_MS * step_ratio(length)
