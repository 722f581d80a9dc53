"""The client of a running stack: one request, its stream put together, its ending or an error."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.endpoint import call
from slipstream.shared.bus.subjects import CANCEL, GENERATE, RESUME
from slipstream.shared.client.stream_assembler import StreamAssembler
from slipstream.shared.errors import (
    DeadlineExceededError,
    NoRespondersError,
    ProtocolError,
    SlipstreamError,
)
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.common import Accepted, Failed, FinishReason, Route, Timings, Usage
from slipstream.shared.messages.generate import (
    Cancel,
    Completion,
    Finished,
    GenerateRequest,
    Resume,
    TokenFrame,
)

SILENCE_S = 2.0  # twice the interval of the keep-alive
_RESUME_PAUSE_S = 0.5  # every frame after a gap shows the same gap: asking once is enough
_MAX_NUM_FRUITLESS_RESUMES = 3  # once the ending is there
_CANCEL_S = 1.0


class RequestFailedError(SlipstreamError):
    """The request ended with `Failed`."""

    def __init__(self, failed: Failed) -> None:
        self.failed = failed
        self.code = failed.code
        message = failed.message
        if failed.retry_after_ms is not None:
            message += f" (try again in {failed.retry_after_ms / 1000:g} s)"
        super().__init__(message)


class IncompleteStreamError(SlipstreamError):
    """The ending came, but tokens before it can't be had any more."""

    code = "incomplete_stream"


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
            return _from_completion(completion)
        case Failed() as failed:
            raise RequestFailedError(failed)
        case other:
            raise ProtocolError(f"expected a Completion, got {type(other).__name__}")


class AnswerStream:
    """One streamed request. `answer` is set when `pieces` has ended."""

    def __init__(
        self,
        bus: Bus,
        request: GenerateRequest,
        *,
        timeout_s: float,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.request_id: RequestId | None = None
        self.answer: Answer | None = None
        self._bus = bus
        self._request = request
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._inbox = bus.new_inbox()
        self._arrived: asyncio.Queue[Incoming] = asyncio.Queue()
        self._assembler = StreamAssembler()
        self._ending: Finished | None = None
        self._resumed_at_s = float("-inf")
        self._num_fruitless_resumes = 0

    async def pieces(self) -> AsyncIterator[str]:
        """
        Publish the request and yield its text as it comes, each character once.

        Raises RequestFailedError, NoRespondersError, DeadlineExceededError, IncompleteStreamError
        and MessageTooLargeError.
        """
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        subscription = await self._bus.subscribe(self._inbox, self._arrived.put)
        try:
            request = encode(self._request)
            await self._bus.publish(GENERATE.subject(), request, reply=self._inbox)
            while self.answer is None:
                piece = await self._step(deadline_s)
                if piece:
                    yield piece
        finally:
            await subscription.stop()

    async def cancel(self) -> None:
        """End the request, as far as anybody listens. Returns in about a second at most."""
        if self.request_id is None:
            return
        with contextlib.suppress(SlipstreamError):
            await call(
                self._bus,
                CANCEL,
                Cancel(request_id=self.request_id),
                timeout_s=_CANCEL_S,
                request_id=self.request_id,
            )

    async def _step(self, deadline_s: float) -> str:
        """Wait for one message, or for silence, and return the text it adds."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= deadline_s:
            await self.cancel()
            raise DeadlineExceededError("ending of the stream", self._timeout_s)
        try:
            async with asyncio.timeout(min(self._silence_s, deadline_s - now_s)):
                incoming = await self._arrived.get()
        except TimeoutError:
            await self._resume()
            return ""
        if incoming.is_no_responders:
            if self.request_id is None:
                raise NoRespondersError(GENERATE.subject())
            # Our Resume met no scheduler: the silence rule asks again.
            return ""
        return await self._take(decoder_of(ClientAnswer).decode(incoming.payload))

    async def _take(self, message: object) -> str:
        match message:
            case Accepted():
                self.request_id = message.request_id
            case TokenFrame():
                return await self._take_frame(message)
            case Finished():
                self.request_id = message.request_id
                self._ending = message
                if not self._try_finish():
                    await self._resume()
            case Failed():
                raise RequestFailedError(message)
            case _:
                raise ProtocolError(f"a stream holds no {type(message).__name__}")
        return ""

    async def _take_frame(self, frame: TokenFrame) -> str:
        # The scheduler's Accepted travels on another connection and may come later.
        self.request_id = frame.request_id
        piece = self._assembler.take(frame)
        if piece is None:
            await self._resume()
            return ""
        if piece or frame.token_ids:
            self._num_fruitless_resumes = 0
        self._try_finish()
        return piece

    def _try_finish(self) -> bool:
        """Set the answer when the ending and everything before it are there."""
        if self._ending is None or not self._assembler.is_complete(self._ending):
            return False
        self.answer = _from_stream(self._assembler, self._ending)
        return True

    async def _resume(self) -> None:
        """Ask for the stream from the first missing token on, unless that was just done."""
        now_s = asyncio.get_running_loop().time()
        if self.request_id is None or now_s - self._resumed_at_s < _RESUME_PAUSE_S:
            return
        if self._ending is not None:
            if self._num_fruitless_resumes >= _MAX_NUM_FRUITLESS_RESUMES:
                raise IncompleteStreamError(
                    f"tokens from {self._assembler.next_index} on of {self._ending.num_tokens} "
                    "did not arrive and can't be had any more; ask again with the same --seed"
                )
            self._num_fruitless_resumes += 1
        self._resumed_at_s = now_s
        message = Resume(
            request_id=self.request_id,
            reply=self._inbox,
            from_index=self._assembler.next_index,
        )
        subject = RESUME.subject(request_id=self.request_id)
        await self._bus.publish(subject, encode(message), reply=self._inbox)


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


def _from_completion(completion: Completion) -> Answer:
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
