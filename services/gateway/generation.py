"""One request for tokens: asked of the scheduler, answered in one piece or in events."""

import time
from collections.abc import Mapping
from contextlib import aclosing

import msgspec

from slipstream.services.gateway.answers import Book, Head, whole_answer
from slipstream.services.gateway.chunks import KEEP_ALIVE, ChunkWriter
from slipstream.services.gateway.exchange import Exchange
from slipstream.services.gateway.gateway import Gateway
from slipstream.services.gateway.plans import Plan
from slipstream.services.gateway.streams import Batch, Streams
from slipstream.shared.messages.generate import Finished, TokenFrame

# Until then a failure can still be told by a status; from then on a client sees that we live.
_QUIET_S = 10.0
_ID_PREFIXES = {"chat": "chatcmpl-", "text": "cmpl-"}
_json = msgspec.json.Encoder().encode


class Generation:
    """Run it once; `book` and `head` tell afterwards what came of it."""

    def __init__(self, gateway: Gateway, exchange: Exchange, plan: Plan, began_s: float) -> None:
        self.plan = plan
        self.book = Book(plan, keeps_text=not plan.is_streamed)
        self.head: Head | None = None
        self.first_chunk_s: float | None = None  # from the arrival of the request
        self._gateway = gateway
        self._exchange = exchange
        self._began_s = began_s

    async def run(self, headers: Mapping[str, str] | None) -> None:
        """Ask and answer; `headers` go with the requests. Raises SlipstreamError, CutOffError."""
        async with Streams(self._gateway, self.plan, headers) as streams:
            if self.plan.is_streamed:
                await self._stream(streams)
            else:
                await self._collect(streams)

    async def _collect(self, streams: Streams) -> None:
        async with aclosing(streams.batches()) as batches:
            async for batch in batches:
                for request, event in batch:
                    match event:
                        case TokenFrame():
                            self.book.add(request, event)
                        case Finished():
                            self.book.end(request, event)
        self.head = self._make_head(streams)
        answer = whole_answer(self.book, self.head, self._gateway.served.texts)
        await self._exchange.answer(200, _json(answer), headers=_names(streams))

    async def _stream(self, streams: Streams) -> None:
        writer: ChunkWriter | None = None
        kept: Batch = []  # what came before there was anything to begin an answer with
        sent_s = self._began_s
        async with aclosing(streams.batches()) as batches:
            async for batch in batches:
                now_s = time.monotonic()
                is_late = now_s - sent_s >= _QUIET_S
                if writer is None:
                    kept += batch
                    if not _begins(kept) and not (is_late and streams.first.accepted):
                        continue
                    writer = await self._begin(streams)
                    batch, kept = kept, []  # noqa: PLW2901 - all that came counts
                events = writer.events(batch)
                if events or is_late:
                    await self._exchange.send_events(events or KEEP_ALIVE)
                    sent_s = now_s
                if events and self.first_chunk_s is None:
                    self._note_first_chunk(streams.first_frame_s)
        assert writer is not None, "an ending begins an answer too"
        await self._exchange.send_events(writer.last(), is_last=True)

    async def _begin(self, streams: Streams) -> ChunkWriter:
        await self._exchange.start_events(_names(streams))
        self.head = self._make_head(streams)
        writer = ChunkWriter(self.book, self.head, self._gateway.served.texts)
        echoed = b"".join(
            writer.echo(request * self.plan.num_choices + choice, self._text_of(prompt))
            for request, prompt in enumerate(self.plan.echoed)
            for choice in range(self.plan.num_choices)
        )
        if echoed:
            await self._exchange.send_events(echoed)
        return writer

    def _note_first_chunk(self, first_frame_s: float | None) -> None:
        now_s = time.monotonic()
        self.first_chunk_s = now_s - self._began_s
        if first_frame_s is not None:
            self._gateway.metrics.first_frame(now_s - first_frame_s)
        self._gateway.metrics.first_byte(self.first_chunk_s)

    def _make_head(self, streams: Streams) -> Head:
        served, accepted = self._gateway.served, streams.first.accepted
        self._exchange.trace_id = accepted.trace_id if accepted is not None else None
        return Head(
            id=f"{_ID_PREFIXES[self.plan.kind]}{streams.first.request_id}",
            created=int(time.time()),
            model=served.card.id,
            fingerprint=served.fingerprint,
            seed=accepted.seed if accepted is not None else None,
        )

    def _text_of(self, prompt: str | list[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        return self._gateway.served.tokenizer.decode(prompt, skip_special_tokens=False)


def _begins(batch: Batch) -> bool:
    """Tell whether there is something to answer with: words, or an ending without any."""
    return any(isinstance(event, TokenFrame | Finished) for _, event in batch)


def _names(streams: Streams) -> Mapping[str, str]:
    """Return by which name the request is found in traces and logs."""
    accepted = streams.first.accepted
    if accepted is None or accepted.trace_id is None:
        return {}
    return {"x-slipstream-trace-id": accepted.trace_id}
