"""A client that asks for what a trace says, and knows how far each of its answers is."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from batch_model import Progress
from traces import Lengths

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import GENERATE
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Finished, GenerateRequest, TokenFrame
from slipstream.shared.messages.packed import PackedInts

_ANSWER_S = 1800.0


@dataclass(frozen=True, eq=False)
class TraceRequest:
    """A request of a trace's lengths: random tokens, which begin like no others."""

    lengths: Lengths
    token_ids: list[int]  # of the prompt

    @classmethod
    def of(cls, lengths: Lengths, rng: random.Random) -> "TraceRequest":
        """Make one up."""
        num_tokens = lengths.num_prompt_tokens
        return cls(lengths, [rng.randrange(1000, 40_000) for _ in range(num_tokens)])


@dataclass(eq=False)
class Answer:
    """What has come of a request."""

    request: TraceRequest
    lengths: Lengths  # of what was sent for it
    ended: "asyncio.Future[None]"
    asked_s: float = field(default_factory=time.perf_counter)
    first_s: float = 0.0
    token_ids: list[int] = field(default_factory=list)

    @property
    def to_first_token_s(self) -> float:
        """How long the client waited for it."""
        return self.first_s - self.asked_s

    @property
    def progress(self) -> Progress:
        """What it needs of the KV cache by now."""
        return Progress(self.lengths, len(self.token_ids))

    async def take(self, incoming: Incoming) -> None:
        """Take in a message of the stream."""
        match decoder_of(ClientAnswer).decode(incoming.payload):
            case TokenFrame(token_ids=token_ids, index=index) if token_ids:
                self.first_s = self.first_s or time.perf_counter()
                self.token_ids[index:] = token_ids
            case Finished():
                self.ended.set_result(None)
            case Failed(message=message):
                self.ended.set_exception(RuntimeError(message))


class TraceClient:
    """Asks for one run of the requests; nothing that it asks is known from another run."""

    def __init__(self, bus: NatsBus, cache_salt: str) -> None:
        self._bus = bus
        self._cache_salt = cache_salt
        self._in_flight: set[Answer] = set()

    def progress(self) -> Sequence[Progress]:
        """Return how far those are that have not ended."""
        return [answer.progress for answer in self._in_flight]

    async def ask(self, request: TraceRequest, padded: Lengths | None = None) -> Answer:
        """
        Return the whole answer, as long as the trace says.

        With `padded`, prompt and answer are made so long, and what is longer than asked is dropped.
        """
        answer = Answer(request, padded or request.lengths, _new_future())
        inbox = self._bus.new_inbox()
        subscription = await self._bus.subscribe(inbox, answer.take)
        self._in_flight.add(answer)
        try:
            message = encode(self._message(answer))
            await self._bus.publish(GENERATE.subject(), message, reply=inbox)
            async with asyncio.timeout(_ANSWER_S):
                await answer.ended
        finally:
            self._in_flight.discard(answer)
            await subscription.stop()
        wanted = request.lengths.num_output_tokens
        if len(answer.token_ids) < wanted:
            raise RuntimeError(f"{len(answer.token_ids)} of {wanted} tokens came")
        del answer.token_ids[wanted:]
        return answer

    def _message(self, answer: Answer) -> GenerateRequest:
        token_ids = answer.request.token_ids
        padding = token_ids[:1] * (answer.lengths.num_prompt_tokens - len(token_ids))
        return GenerateRequest(
            prompt_token_ids=PackedInts(token_ids + padding),
            stream=True,
            temperature=0,
            ignore_eos=True,
            max_tokens=answer.lengths.num_output_tokens,
            speculation="off",
            deadline_ms=int(_ANSWER_S * 1000),
            cache_salt=self._cache_salt,
        )


def _new_future() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()
