"""The client of a running stack: one request, its stream put together, its ending or an error."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.subjects import GENERATE
from slipstream.shared.client.mailbox import PrivateMailbox
from slipstream.shared.client.request_stream import (
    SILENCE_S,
    IncompleteStreamError,
    RequestFailedError,
    RequestStream,
)
from slipstream.shared.client.stream_assembler import StreamAssembler
from slipstream.shared.errors import ProtocolError
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.common import Failed, FinishReason, Route, Timings, Usage
from slipstream.shared.messages.generate import Completion, Finished, GenerateRequest, TokenFrame

__all__ = [
    "SILENCE_S",
    "Answer",
    "AnswerStream",
    "IncompleteStreamError",
    "RequestFailedError",
    "complete",
]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A request that was served."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    request_id: RequestId
    route: Route | None
    trace_id: str | None
    seed: int | None
    model: str | None


async def complete(bus: Bus, request: GenerateRequest, *, timeout_s: float) -> Answer:
    """Ask for the whole answer in one message. Raises RequestFailedError, and as `Bus.request`."""
    incoming = await bus.request(GENERATE.subject(), encode(request), timeout_s=timeout_s)
    match decoder_of(ClientAnswer).decode(incoming.payload):
        case Completion() as completion:
            return answer_of(completion)
        case Failed() as failed:
            raise RequestFailedError(failed)
        case other:
            raise ProtocolError(f"expected a Completion, got {type(other).__name__}")


class AnswerStream:
    """One streamed request for one choice. `answer` is set when `pieces` has ended."""

    def __init__(
        self,
        bus: Bus,
        request: GenerateRequest,
        *,
        timeout_s: float,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.answer: Answer | None = None
        self._stream = RequestStream(
            bus,
            request,
            lambda: PrivateMailbox.open(bus),
            timeout_s=timeout_s,
            silence_s=silence_s,
        )

    @property
    def request_id(self) -> RequestId | None:
        """What the scheduler calls it; None until that is known."""
        return self._stream.request_id

    async def pieces(self) -> AsyncGenerator[str, None]:
        """
        Publish the request and yield its text as it comes, each character once.

        Raises RequestFailedError, NoRespondersError, DeadlineExceededError, IncompleteStreamError
        and MessageTooLargeError.
        """
        await self._stream.open()
        try:
            async for events in self._stream.batches():
                for event in events:
                    if isinstance(event, TokenFrame) and event.text:
                        yield event.text
                    elif isinstance(event, Finished):
                        self.answer = _from_stream(self._stream.readers[0].assembler, event)
        finally:
            await self._stream.close()

    async def cancel(self) -> None:
        """End the request, as far as anybody listens. Returns in about a second at most."""
        await self._stream.cancel()


def _from_stream(assembler: StreamAssembler, ending: Finished) -> Answer:
    return Answer(
        text=assembler.text,
        token_ids=assembler.token_ids,
        finish_reason=ending.finish_reason,
        usage=ending.usage,
        timings=ending.timings,
        request_id=ending.request_id,
        route=ending.route,
        trace_id=ending.trace_id,
        seed=ending.seed,
        model=ending.model,
    )


def answer_of(completion: Completion) -> Answer:
    """Return the first choice of a whole answer."""
    choice = completion.choices[0]
    return Answer(
        text=choice.text,
        token_ids=list(choice.token_ids),
        finish_reason=choice.finish_reason,
        usage=completion.usage,
        timings=completion.timings,
        request_id=completion.request_id,
        route=completion.route,
        trace_id=completion.trace_id,
        seed=completion.seed,
        model=completion.model,
    )
