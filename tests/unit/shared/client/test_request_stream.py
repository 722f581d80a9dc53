"""A request of several choices, read from one of many boxes in a room."""

import asyncio

import pytest

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus
from slipstream.shared.bus.subjects import CANCEL, GENERATE, RESUME
from slipstream.shared.client import request_stream
from slipstream.shared.client.mailbox import MailRoom
from slipstream.shared.client.request_stream import (
    RequestFailedError,
    RequestStream,
    StreamEvent,
)
from slipstream.shared.errors import NoAnswerError, NoRespondersError
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import decoder_of, encode
from slipstream.shared.messages.common import Accepted, Failed, Timings, Usage
from slipstream.shared.messages.generate import (
    Cancel,
    Cancelled,
    Finished,
    GenerateRequest,
    Resume,
    TokenFrame,
)
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import TokenLogprobs

ID = RequestId("abc")
REQUEST = GenerateRequest(prompt="?", stream=True, n=2)


def frame(choice: int, start: int, text: str) -> TokenFrame:
    """A frame of one token a character, with its logprobs."""
    return TokenFrame(
        request_id=RequestId(f"{ID}c{choice}"),
        attempt=1,
        choice=choice,
        index=start,
        text_offset=start,
        token_ids=PackedInts(map(ord, text)),
        text=text,
        logprobs=[TokenLogprobs(ord(each), -0.5, [], []) for each in text],
    )


def ending(choice: int, num_tokens: int) -> Finished:
    return Finished(
        request_id=RequestId(f"{ID}c{choice}"),
        attempt=1,
        choice=choice,
        finish_reason="stop",
        usage=Usage(num_prompt_tokens=1, num_output_tokens=num_tokens),
        timings=Timings(),
        num_tokens=num_tokens,
        text_length=num_tokens,
    )


class Service:
    """Answers a request, and each Resume, with the next script."""

    def __init__(self, *scripts: list[object], max_box_bytes: int = 65_536) -> None:
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)
        self.room = MailRoom(MemoryBus(self.broker), max_box_bytes)
        self.cancelled: list[RequestId] = []
        self.resumed: list[tuple[RequestId, int]] = []
        self.reply = ""
        self._scripts = list(scripts)

    async def open(self, **times: float) -> RequestStream:
        """Listen, and open a stream."""
        await self.room.start()
        await self.bus.subscribe(GENERATE.subject(), self._generate)
        await self.bus.subscribe(RESUME.wildcard, self._resume)
        await self.bus.subscribe(CANCEL.wildcard, self._cancel)
        bus = MemoryBus(self.broker)
        made = RequestStream(bus, REQUEST, self.room.open, timeout_s=5, **times)  # type: ignore[arg-type]
        await made.open()
        return made

    async def play(self, messages: list[object]) -> None:
        """Send messages to the box."""
        for message in messages:
            await self.bus.publish(self.reply, encode(message))

    async def _generate(self, message: Incoming) -> None:
        self.reply = message.reply
        await self._next()

    async def _resume(self, message: Incoming) -> None:
        resume = decoder_of(Resume).decode(message.payload)
        self.resumed.append((resume.request_id, resume.from_index))
        await self._next()

    async def _cancel(self, message: Incoming) -> None:
        self.cancelled.append(decoder_of(Cancel).decode(message.payload).request_id)
        await self.bus.publish(message.reply, encode(Cancelled(request_id=ID)))

    async def _next(self) -> None:
        await self.play(self._scripts.pop(0) if self._scripts else [])


async def read(stream: RequestStream) -> list[StreamEvent]:
    return [event async for events in stream.batches() for event in events]


def said(events: list[StreamEvent], choice: int) -> str:
    frames = [each for each in events if isinstance(each, TokenFrame) and each.choice == choice]
    assert all(each.token_ids and each.logprobs for each in frames)
    assert all(len(each.logprobs or []) == len(each.token_ids) for each in frames)
    return "".join(each.text for each in frames)


async def test_choices_end_one_by_one_and_the_stream_with_the_last() -> None:
    service = Service(
        [
            Accepted(request_id=ID, seed=7),
            frame(0, 0, "ab"),
            frame(1, 0, "x"),
            ending(1, 1),
            frame(0, 1, "bc"),  # half of it is known
            ending(0, 3),
        ]
    )
    stream = await service.open()

    events = await read(stream)

    assert ("abc", "x") == (said(events, 0), said(events, 1))
    assert [1, 0] == [event.choice for event in events if isinstance(event, Finished)]
    assert (ID, True) == (stream.request_id, stream.is_over)
    assert [] == service.resumed


async def test_a_gap_in_one_choice_is_asked_for_by_that_choice_s_name() -> None:
    service = Service(
        [Accepted(request_id=ID), frame(1, 2, "z"), frame(0, 0, "a"), ending(0, 1)],
        [frame(1, 0, "xyz"), ending(1, 3)],
    )

    events = await read(await service.open())

    assert [(RequestId("abcc1"), 0)] == service.resumed
    assert ("a", "xyz") == (said(events, 0), said(events, 1))


async def test_what_was_missed_comes_in_pieces_one_after_the_other() -> None:
    last = ending(0, 7)
    service = Service(
        [Accepted(request_id=ID), frame(1, 0, "x"), ending(1, 1), frame(0, 6, "g"), last],
        *[[frame(0, start, text), last] for start, text in ((0, "ab"), (2, "cde"), (5, "fg"))],
    )
    stream = await service.open()
    began_s = asyncio.get_running_loop().time()

    events = await read(stream)

    assert [0, 2, 5] == [index for _, index in service.resumed]
    assert "abcdefg" == said(events, 0)
    # Nothing was waited for: neither the pause between equal questions nor a silence.
    assert asyncio.get_running_loop().time() - began_s < request_stream.SILENCE_S


async def test_frames_beside_a_slow_reader_are_bounded_and_asked_for_again() -> None:
    frames: list[object] = [frame(0, start, "a") for start in range(100)]
    service = Service(
        [Accepted(request_id=ID), *frames, ending(0, 100), frame(1, 0, "x"), ending(1, 1)],
        [frame(0, 0, "a" * 100)],
        *[[frame(1, 0, "x")]] * 3,
        max_box_bytes=600,
    )
    stream = await service.open(silence_s=0.05)
    await asyncio.sleep(0.05)

    dropped = service.room.num_dropped_frames
    events = await read(stream)

    assert dropped > 50
    assert ("a" * 100, "x") == (said(events, 0), said(events, 1))


async def test_an_abandoned_request_is_cancelled_as_soon_as_it_has_a_name() -> None:
    service = Service([])
    stream = await service.open()

    leaving = asyncio.create_task(stream.abandon())
    await asyncio.sleep(0.05)
    assert [] == service.cancelled
    await service.play([Accepted(request_id=ID)])
    await leaving

    assert [ID] == service.cancelled
    assert not service.room._boxes


async def test_a_request_with_a_name_is_cancelled_at_once() -> None:
    service = Service([frame(1, 0, "x")])
    stream = await service.open()
    async for _ in stream.batches():
        break

    await stream.abandon()

    # By the name of all its choices.
    assert [ID] == service.cancelled


async def test_what_was_refused_needs_no_cancel() -> None:
    service = Service([Failed(code="overloaded", message="full")])
    stream = await service.open()

    with pytest.raises(RequestFailedError):
        await read(stream)
    assert stream.is_over


async def test_of_one_failed_choice_the_others_are_left_to_cancel() -> None:
    service = Service([frame(0, 0, "a"), Failed(code="lost", message="m", choice=1)])
    stream = await service.open()

    with pytest.raises(RequestFailedError):
        await read(stream)
    assert not stream.is_over


async def test_services_that_fall_silent_are_given_up() -> None:
    service = Service([Accepted(request_id=ID)])
    stream = await service.open(silence_s=0.02, lost_s=0.1)

    with pytest.raises(NoAnswerError):
        await read(stream)
    assert [ID] == service.cancelled


async def test_who_waits_with_many_does_not_ask_between_one_word_and_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_stream, "_RESUME_PAUSE_S", 0.0)
    service = Service([Accepted(request_id=ID)])
    stream = await service.open(silence_s=0.1)
    reading = asyncio.create_task(read(stream))

    for _ in range(12):
        await asyncio.sleep(0.15)
        await service.play([frame(0, 0, "")])
    # It was not known before the first time, and a machine may stop for a moment; two choices.
    num_asked = len(service.resumed)
    await service.play([frame(0, 0, "a")])
    while len(service.resumed) == num_asked:
        await asyncio.sleep(0.01)

    assert num_asked <= 6
    reading.cancel()


async def test_without_a_scheduler_it_is_known_at_once() -> None:
    broker = MemoryBroker()
    room = MailRoom(MemoryBus(broker), 1000)
    await room.start()
    stream = RequestStream(MemoryBus(broker), REQUEST, room.open, timeout_s=5)
    await stream.open()

    with pytest.raises(NoRespondersError):
        await read(stream)
    assert stream.is_over
