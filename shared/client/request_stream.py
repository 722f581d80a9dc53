"""A streamed request with all of its choices: each token once, gaps asked for, one end to it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

import msgspec

from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.endpoint import call
from slipstream.shared.bus.subjects import CANCEL, GENERATE, RESUME
from slipstream.shared.client.mailbox import Mailbox, OpenMailbox
from slipstream.shared.client.stream_assembler import StreamAssembler
from slipstream.shared.errors import (
    DeadlineExceededError,
    NoAnswerError,
    NoRespondersError,
    ProtocolError,
    SlipstreamError,
)
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.common import Accepted, Failed
from slipstream.shared.messages.generate import (
    Cancel,
    Finished,
    GenerateRequest,
    Resume,
    TokenFrame,
)

SILENCE_S = 2.0  # twice the interval of the keep-alive
_LONGEST_SILENCE_S = 16.0  # of a request that waits with thousands: each is told in turn
_RESUME_PAUSE_S = 0.5  # every frame after a gap shows the same gap: asking once is enough
# What a reader missed is sent again in pieces, each asked for when the one before was taken: all of
# it at once would hold up whoever reads beside, and a slow reader would miss most of it again.
_REPLAYED_TOKENS = 64
_MAX_NUM_FRUITLESS_RESUMES = 3  # once the ending is there
_CANCEL_S = 1.0
_NUM_CANCEL_TRIES = 3
_ACCEPTED_S = 10.0  # what an abandoned request may need until it has a name to cancel

# A frame holds only what its choice had not said before, an ending comes after all frames.
StreamEvent = Accepted | TokenFrame | Finished


class RequestFailedError(SlipstreamError):
    """The request ended with `Failed`."""

    def __init__(self, failed: Failed) -> None:
        self.failed = failed
        self.code = failed.code
        self.field = failed.field
        ms = failed.retry_after_ms
        self.retry_after_s = None if ms is None else ms / 1000
        message = failed.message
        if self.retry_after_s is not None:
            message += f" (try again in {self.retry_after_s:g} s)"
        super().__init__(message)


class IncompleteStreamError(SlipstreamError):
    """The ending came, but tokens before it can't be had any more."""

    code = "incomplete_stream"


@dataclass(eq=False)
class ChoiceReader:
    """How far one choice was read."""

    choice: int
    assembler: StreamAssembler
    request_id: RequestId | None = None  # the choice's own, where there are several
    ending: Finished | None = None
    is_complete: bool = False
    resumed_at_s: float = float("-inf")
    resumed_index: int = 0  # from which on it was asked for then
    num_fruitless_resumes: int = 0


class RequestStream:
    """Open it, read its events, and close it; or abandon it, which ends the request too."""

    def __init__(
        self,
        bus: Bus,
        request: GenerateRequest,
        open_mailbox: OpenMailbox,
        *,
        timeout_s: float,
        silence_s: float = SILENCE_S,
        lost_s: float | None = None,
    ) -> None:
        """`lost_s` is how long nothing at all may come; None leaves that to the deadline."""
        self.request_id: RequestId | None = None
        self.accepted: Accepted | None = None
        self.readers = [
            ChoiceReader(choice, StreamAssembler(choice)) for choice in range(request.n or 1)
        ]
        self._bus = bus
        self._request = request
        self._open_mailbox = open_mailbox
        self._timeout_s = timeout_s
        self._silence_s = silence_s
        self._patience_s = silence_s  # as much, or more while it waits with many
        self._has_begun = False
        self._lost_s = lost_s
        self._mailbox: Mailbox | None = None
        self._is_refused = False
        self._failure: SlipstreamError | None = None  # raised when what came before it was told
        self._deadline_s = 0.0
        self._heard_s = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether every choice has ended, and all of it was read."""
        return all(reader.is_complete for reader in self.readers)

    @property
    def is_over(self) -> bool:
        """Whether nothing of the request is left to cancel."""
        return self._is_refused or self.is_complete

    @property
    def first_frame_s(self) -> float | None:
        """When the first frame came, by the monotonic clock; None while there is none."""
        return self._mailbox.first_frame_s if self._mailbox is not None else None

    async def open(self, headers: Mapping[str, str] | None = None) -> None:
        """Publish the request. Raises MessageTooLargeError and DisconnectedError."""
        self._heard_s = asyncio.get_running_loop().time()
        self._deadline_s = self._heard_s + self._timeout_s
        self._mailbox = await self._open_mailbox()
        try:
            await self._bus.publish(
                GENERATE.subject(),
                encode(
                    msgspec.structs.replace(self._request, batch_inbox=self._mailbox.batch_inbox)
                ),
                reply=self._mailbox.subject,
                headers=headers,
            )
        except BaseException:
            await self.close()
            raise

    async def batches(self) -> AsyncGenerator[list[StreamEvent], None]:
        """
        Yield what has come since the last time, until the last choice has ended.

        Nothing new is news too: an empty list comes with each keep-alive or silence, so that no
        reader waits here for longer than a silence lasts.

        Raises RequestFailedError, NoRespondersError, DeadlineExceededError, NoAnswerError and
        IncompleteStreamError.
        """
        while not self.is_complete:
            yield await self._step()

    async def close(self) -> None:
        """Listen no more."""
        if self._mailbox is not None:
            await self._mailbox.close()

    async def cancel(self) -> bool:
        """End the request, as far as anybody listens; tell whether it was answered in a second."""
        if self.request_id is None:
            return False
        with contextlib.suppress(SlipstreamError):
            await call(
                self._bus,
                CANCEL,
                Cancel(request_id=self.request_id),
                timeout_s=_CANCEL_S,
                request_id=self.request_id,
            )
            return True
        return False

    async def abandon(self) -> None:
        """End a request whose reader has gone, also one that is not accepted yet, and close."""
        try:
            async with asyncio.timeout(_ACCEPTED_S):
                while self.request_id is None:
                    await self._step()
        except (SlipstreamError, TimeoutError):
            # It was refused, or nobody is there to end it.
            if self.request_id is None:
                return
        finally:
            await self.close()
        for _ in range(_NUM_CANCEL_TRIES):
            if await self.cancel():
                return

    async def _step(self) -> list[StreamEvent]:
        """Wait for messages, or for silence, and return what they add."""
        assert self._mailbox is not None, "opened before it is read"
        if self._failure is not None:
            raise self._failure
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._deadline_s:
            await self.cancel()
            raise DeadlineExceededError("ending of the stream", self._timeout_s)
        try:
            async with asyncio.timeout(min(self._patience_s, self._deadline_s - now_s)):
                messages = await self._mailbox.take()
        except TimeoutError:
            await self._ask_after_silence()
            return []
        events: list[StreamEvent] = []
        for incoming in messages:
            try:
                await self._take(incoming, events)
            except SlipstreamError as error:
                if not events:
                    raise
                self._failure = error
                break
        return events

    async def _ask_after_silence(self) -> None:
        silent_s = asyncio.get_running_loop().time() - self._heard_s
        if self._lost_s is not None and silent_s >= self._lost_s:
            await self.cancel()
            raise NoAnswerError("word of the request", self._lost_s)
        for reader in self.readers:
            await self._resume(reader)

    async def _take(self, incoming: Incoming, events: list[StreamEvent]) -> None:
        if incoming.is_no_responders:
            if self.request_id is None:
                self._is_refused = True
                raise NoRespondersError(GENERATE.subject())
            # Our Resume met no scheduler: the silence rule asks again.
            return
        self._hear()
        match decoder_of(ClientAnswer).decode(incoming.payload):
            case Accepted() as accepted:
                self._take_accepted(accepted, events)
            case TokenFrame() as frame:
                await self._take_frame(frame, events)
            case Finished() as ending:
                await self._take_ending(ending, events)
            case Failed() as failed:
                # Of several choices the others may still run.
                self._is_refused = self.request_id is None or len(self.readers) == 1
                raise RequestFailedError(failed)
            case other:
                raise ProtocolError(f"a stream holds no {type(other).__name__}")

    def _hear(self) -> None:
        """
        Note that somebody spoke, and of a waiting request how long that took.

        The more of them wait, the longer it takes until each is told that it does. To ask in
        between would be more work for a scheduler that has much to do already.
        """
        now_s = asyncio.get_running_loop().time()
        if self.accepted is not None and not self._has_begun:
            longest_s = max(self._silence_s, _LONGEST_SILENCE_S)
            self._patience_s = min(max(self._patience_s, 2 * (now_s - self._heard_s)), longest_s)
        self._heard_s = now_s

    def _take_accepted(self, accepted: Accepted, events: list[StreamEvent]) -> None:
        if self.accepted is None:
            self.accepted = accepted
            events.append(accepted)
        self._name(accepted.request_id, None)

    async def _take_frame(self, frame: TokenFrame, events: list[StreamEvent]) -> None:
        # The scheduler's Accepted travels on another connection and may come later.
        reader = self._name(frame.request_id, frame.choice)
        if reader is None:
            return
        new = reader.assembler.take_new(frame)
        if new is None:
            await self._resume(reader)
            return
        if new.text or new.token_ids:
            self._has_begun = True
            self._patience_s = self._silence_s
            # Of any: what is sent again to one choice may fill the box for the others.
            for each in self.readers:
                each.num_fruitless_resumes = 0
            events.append(new)
        self._finish(reader, events)

    async def _take_ending(self, ending: Finished, events: list[StreamEvent]) -> None:
        reader = self._name(ending.request_id, ending.choice)
        if reader is None:
            return
        reader.ending = reader.ending or ending
        self._finish(reader, events)
        if not reader.is_complete:
            await self._resume(reader)

    def _finish(self, reader: ChoiceReader, events: list[StreamEvent]) -> None:
        """Pass the ending on when everything before it is there."""
        ending = reader.ending
        if ending is not None and not reader.is_complete and reader.assembler.is_complete(ending):
            reader.is_complete = True
            events.append(ending)

    def _name(self, request_id: RequestId, choice: int | None) -> ChoiceReader | None:
        """Learn the request's id; return the reader of the choice."""
        is_one = len(self.readers) == 1
        if choice is None or is_one:
            self.request_id = request_id
            if is_one:
                self.readers[0].request_id = request_id
        else:
            # Each of several choices is a request of its own to those who serve it.
            self.request_id = RequestId(request_id.removesuffix(f"c{choice}"))
        if choice is None or not 0 <= choice < len(self.readers):
            return None
        self.readers[choice].request_id = request_id
        return self.readers[choice]

    async def _resume(self, reader: ChoiceReader) -> None:
        """Ask for a choice from its first missing token on, unless that was just done."""
        now_s = asyncio.get_running_loop().time()
        is_recent = now_s - reader.resumed_at_s < _RESUME_PAUSE_S
        is_asked = is_recent and reader.resumed_index == reader.assembler.next_index
        if reader.request_id is None or reader.is_complete or is_asked:
            return
        if reader.ending is not None:
            if reader.num_fruitless_resumes >= _MAX_NUM_FRUITLESS_RESUMES:
                raise IncompleteStreamError(
                    f"tokens from {reader.assembler.next_index} on of {reader.ending.num_tokens} "
                    "did not arrive and can't be had any more; ask again with the same seed"
                )
            reader.num_fruitless_resumes += 1
        reader.resumed_at_s = now_s
        reader.resumed_index = reader.assembler.next_index
        assert self._mailbox is not None, "opened before anything can be missed"
        message = Resume(
            request_id=reader.request_id,
            reply=self._mailbox.subject,
            from_index=reader.assembler.next_index,
            choice=reader.choice,
            max_num_tokens=_REPLAYED_TOKENS,
        )
        subject = RESUME.subject(request_id=reader.request_id)
        await self._bus.publish(subject, encode(message), reply=self._mailbox.subject)
