"""Send streams to their clients, notice clients that went away, replay for who resumes."""

import asyncio
import time
from collections import OrderedDict

import structlog

from slipstream.services.decode.frame_batches import FrameBatches
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.services.decode.stream import TokenLog
from slipstream.shared.bus.bus import HEADER_ROOM, Bus, Incoming
from slipstream.shared.bus.subjects import is_inbox, last_token
from slipstream.shared.errors import MessageTooLargeError, SlipstreamError
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion, Finished, Resume, TokenFrame
from slipstream.shared.messages.jobs import Encoding, ReplyTarget

log = structlog.get_logger()

KEEP_ALIVE_S = 1.0
GONE_AFTER_S = 5.0


class StreamPublisher:
    """Publishes frames and endings; the one publisher of the streams of this worker."""

    def __init__(self, bus: Bus, keep_s: float) -> None:
        self._bus = bus
        self._keep_s = keep_s
        self._running: dict[RequestId, DecodeSequence] = {}
        self._ended: OrderedDict[RequestId, tuple[float, TokenLog | Failed, Encoding]] = (
            OrderedDict()
        )
        self._misses: dict[RequestId, tuple[float, float]] = {}  # first and last failed probe
        self._last_sent: dict[RequestId, float] = {}
        self._last_probe: dict[RequestId, float] = {}
        self._probe_inbox = bus.new_inbox()
        self._batches = FrameBatches(bus, self._probe_inbox)
        self._num_returns = bus.connection.num_returns

    async def start(self) -> None:
        """Listen for the server's word that nobody listens."""
        await self._bus.subscribe(f"{self._probe_inbox}.*", self._nobody_listens)

    def open(self, sequence: DecodeSequence) -> None:
        """Begin a stream."""
        self._running[sequence.job.request_id] = sequence

    def batch(self, sequence: DecodeSequence) -> bool:
        """Send what is new with others of this step; False where its reader takes no batches."""
        if not _is_batched(sequence.job.reply):
            return False
        frame = sequence.log.next_frame()
        if frame is not None:
            self._add(sequence, frame)
        return True

    async def progress(self, sequence: DecodeSequence) -> None:
        """Send what is new, in one frame."""
        if self.batch(sequence):
            await self._batches.flush()
            return
        if sequence.job.reply.is_streamed:
            frame = sequence.log.next_frame()
            if frame is not None:
                await self._send_frame(sequence, frame)

    async def finish(
        self, sequence: DecodeSequence, answer: Finished | Completion
    ) -> Failed | None:
        """
        Send the ending and keep the stream for readers that resume.

        Return what was sent in its place, if it could not be.
        """
        try:
            await self._until_connected(sequence)
            await self.progress(sequence)
            return await self._send(sequence.job.reply, answer)
        finally:
            self._close(sequence, sequence.log)

    async def fail(self, sequence: DecodeSequence, failed: Failed) -> None:
        """Send a failure as the one ending."""
        try:
            await self._until_connected(sequence)
            if _is_batched(sequence.job.reply):
                await self._batches.flush()
            await self._send(sequence.job.reply, failed)
        finally:
            self._close(sequence, failed)

    def forget(self, sequence: DecodeSequence) -> None:
        """Drop a stream that another attempt, or the scheduler, ends."""
        self._stop(sequence)

    async def resume(self, message: Resume) -> Failed | None:
        """Replay a running or ended stream to another inbox; None when it was done."""
        if not is_inbox(message.reply):
            return Failed(code="invalid_request", field="reply", message="reply must be an inbox")
        sequence = self._running.get(message.request_id)
        ended = self._ended.get(message.request_id)
        found = sequence.log if sequence is not None else ended[1] if ended is not None else None
        if found is None:
            return Failed(
                code="not_found",
                message="no such stream here; ended ones are kept for a minute",
                request_id=message.request_id,
            )
        if isinstance(found, Failed):
            assert ended is not None, "only an ended stream has failed"
            await self._bus.publish(message.reply, encode(found, ended[2]))
            return None
        encoding = found.job.reply.encoding
        num_tokens = len(found.token_ids)
        first = min(max(message.from_index, 0), num_tokens)
        if message.max_num_tokens is not None:
            num_tokens = min(num_tokens, first + max(message.max_num_tokens, 1))
        await self._replay(found, message.reply, first, num_tokens)
        if found.ending is not None:
            await self._bus.publish(message.reply, encode(found.ending, encoding))
        return None

    async def _replay(self, found: TokenLog, reader: str, first: int, end: int) -> None:
        """Send the tokens of a stream in as few frames as messages can hold."""
        payload = encode(found.frame_from(first, end=end), found.job.reply.encoding)
        if len(payload) <= self._bus.max_payload - HEADER_ROOM or end - first <= 1:
            await self._bus.publish(reader, payload)
            return
        middle = (first + end) // 2
        await self._replay(found, reader, first, middle)
        await self._replay(found, reader, middle, end)

    async def keep_alive_loop(self) -> None:
        """Once a second tell quiet streams' readers that we live, and forget old streams."""
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            try:
                await self._keep_alive(time.monotonic())
            except SlipstreamError as error:
                log.warning("keep_alive_not_sent", error=str(error))

    async def _until_connected(self, sequence: DecodeSequence) -> None:
        """Wait for NATS: an ending that is held back may be dropped, and comes but once."""
        if self._bus.connection.is_up:
            return
        log.info("ending_held_back", request_id=sequence.job.request_id)
        await self._bus.connection.wait_up(self._keep_s)

    async def _keep_alive(self, now: float) -> None:
        connection = self._bus.connection
        if not connection.is_up:
            return
        if self._num_returns != connection.num_returns:
            # Absence means nothing for a while: clients come back one by one.
            self._num_returns = connection.num_returns
            self._misses.clear()
        while self._ended and next(iter(self._ended.values()))[0] < connection.now():
            self._ended.popitem(last=False)
        for request_id, sequence in list(self._running.items()):
            is_quiet = now - self._last_sent.get(request_id, 0.0) >= KEEP_ALIVE_S / 2
            if sequence.job.reply.is_streamed and not sequence.is_over:
                self._cancel_if_gone(sequence, now)
                if _is_batched(sequence.job.reply):
                    if is_quiet:
                        self._add(sequence, sequence.log.keep_alive())
                elif is_quiet or request_id in self._misses:
                    await self._send_frame(sequence, sequence.log.keep_alive(), is_probe=True)

    def _add(self, sequence: DecodeSequence, frame: TokenFrame) -> None:
        reply = sequence.job.reply
        assert reply.gateway_id is not None, "asked for before"
        self._last_sent[sequence.job.request_id] = time.monotonic()
        self._batches.add(reply.gateway_id, last_token(reply.subject), encode(frame))

    async def _send_frame(
        self, sequence: DecodeSequence, frame: TokenFrame, *, is_probe: bool = False
    ) -> None:
        reply = sequence.job.reply
        request_id = sequence.job.request_id
        now = time.monotonic()
        # The first frame and one a second carry a reply subject: the server then says when nobody
        # listens. More would cost an answer each.
        is_probe = is_probe or now - self._last_probe.get(request_id, 0.0) >= KEEP_ALIVE_S
        self._last_sent[request_id] = now
        if is_probe:
            self._last_probe[request_id] = now
        await self._bus.publish(
            reply.subject,
            encode(frame, reply.encoding),
            reply=f"{self._probe_inbox}.{request_id}" if is_probe else "",
        )

    async def _send(
        self, reply: ReplyTarget, answer: Finished | Completion | Failed
    ) -> Failed | None:
        try:
            await self._bus.publish(reply.subject, encode(answer, reply.encoding))
        except MessageTooLargeError as error:
            # The answer of a plain request is one message: say so rather than say nothing.
            failed = Failed(
                code=error.code,
                message=f"the answer is too large for one message ({error}); use stream: true",
                request_id=answer.request_id,
            )
            await self._bus.publish(reply.subject, encode(failed, reply.encoding))
            return failed
        return None

    async def _nobody_listens(self, message: Incoming) -> None:
        if not message.is_no_responders:
            return
        name = last_token(message.subject)
        gateway = self._batches.gateway_of(name)
        missed = [RequestId(name)] if gateway is None else self._read_by(gateway)
        now = time.monotonic()
        for request_id in missed:
            if request_id in self._running:
                first, _ = self._misses.get(request_id, (now, now))
                self._misses[request_id] = (first, now)

    def _read_by(self, gateway: str) -> list[RequestId]:
        return [
            request_id
            for request_id, sequence in self._running.items()
            if _is_batched(sequence.job.reply) and sequence.job.reply.gateway_id == gateway
        ]

    def _cancel_if_gone(self, sequence: DecodeSequence, now: float) -> None:
        """Cancel when every probe has failed for a while."""
        request_id = sequence.job.request_id
        first, last = self._misses.get(request_id, (now, now))
        if now - last > 2 * KEEP_ALIVE_S:
            del self._misses[request_id]
        elif now - first >= GONE_AFTER_S:
            sequence.cancel_reason = "client_gone"

    def _close(self, sequence: DecodeSequence, kept: TokenLog | Failed) -> None:
        self._stop(sequence)
        request_id = sequence.job.request_id
        self._ended[request_id] = (
            # Nobody can ask for it while we are cut off.
            self._bus.connection.now() + self._keep_s,
            kept,
            sequence.job.reply.encoding,
        )
        self._ended.move_to_end(request_id)

    def _stop(self, sequence: DecodeSequence) -> None:
        request_id = sequence.job.request_id
        if self._running.get(request_id) is not sequence:
            return  # the next attempt's stream runs already
        del self._running[request_id]
        self._misses.pop(request_id, None)
        self._last_sent.pop(request_id, None)
        self._last_probe.pop(request_id, None)


def _is_batched(reply: ReplyTarget) -> bool:
    return reply.is_streamed and reply.gateway_id is not None and reply.encoding == "msgpack"
