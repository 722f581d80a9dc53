"""A client that asks for what a trace says, and knows how far each of its answers is."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from batch_model import Progress
from streams import answers

from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.measure.load.traces import Lengths
from slipstream.shared.messages.generate import GenerateRequest, TokenFrame
from slipstream.shared.messages.packed import PackedInts

_DEADLINE_MS = 1_800_000


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

    def take(self, frame: TokenFrame) -> None:
        """Take in tokens of the stream."""
        self.first_s = self.first_s or time.perf_counter()
        self.token_ids[frame.index :] = frame.token_ids


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
        answer = Answer(request, padded or request.lengths)
        self._in_flight.add(answer)
        try:
            async for frame in answers(self._bus, self._message(answer)):
                answer.take(frame)
        finally:
            self._in_flight.discard(answer)
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
            deadline_ms=_DEADLINE_MS,
            cache_salt=self._cache_salt,
        )
