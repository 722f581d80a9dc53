"""The client against a scripted service on the in-memory bus."""

import asyncio

import pytest

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus
from slipstream.shared.bus.subjects import CANCEL, GENERATE, RESUME
from slipstream.shared.client.answers import (
    AnswerStream,
    IncompleteStreamError,
    RequestFailedError,
    complete,
)
from slipstream.shared.errors import DeadlineExceededError, NoRespondersError
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import decode_request, decoder_of, encode
from slipstream.shared.messages.common import Accepted, Failed, Timings, Usage
from slipstream.shared.messages.generate import (
    Cancel,
    Cancelled,
    Choice,
    Completion,
    Finished,
    GenerateRequest,
    Resume,
    TokenFrame,
)
from slipstream.shared.messages.packed import PackedInts

ID = RequestId("abc123")
WORDS = ["The", " capital", " is", " Paris"]
OFFSETS = [0, 3, 11, 14, 20]
REQUEST = GenerateRequest(prompt="?", stream=True)


def frame(index: int, attempt: int = 1) -> TokenFrame:
    return TokenFrame(
        request_id=ID,
        attempt=attempt,
        index=index,
        text_offset=OFFSETS[index],
        token_ids=PackedInts([index]),
        text=WORDS[index],
    )


def keep_alive(index: int) -> TokenFrame:
    return TokenFrame(
        request_id=ID,
        attempt=1,
        index=index,
        text_offset=OFFSETS[index],
        token_ids=PackedInts(),
        text="",
    )


FINISHED = Finished(
    request_id=ID,
    attempt=1,
    finish_reason="stop",
    usage=Usage(num_prompt_tokens=1, num_output_tokens=4),
    timings=Timings(ttft_ms=5.0, tpot_ms=2.0),
    num_tokens=4,
    text_length=20,
    route="remote",
    trace_id="0" * 31 + "1",
)
ACCEPTED = Accepted(request_id=ID, seed=7)


class Service:
    """Answers a request, and each Resume, with the next script."""

    def __init__(self, *scripts: list[object]) -> None:
        self.broker = MemoryBroker()
        self.bus = MemoryBus(self.broker)
        self.resumes: list[Resume] = []
        self.cancels: list[Cancel] = []
        self._scripts = list(scripts)

    async def start(self) -> MemoryBus:
        """Listen, and return a bus for the client."""
        await self.bus.subscribe(GENERATE.subject(), self._generate)
        await self.bus.subscribe(RESUME.wildcard, self._resume)
        await self.bus.subscribe(CANCEL.wildcard, self._cancel)
        return MemoryBus(self.broker)

    async def _generate(self, message: Incoming) -> None:
        decode_request(message.payload)
        await self._play(message.reply)

    async def _resume(self, message: Incoming) -> None:
        resume = decoder_of(Resume).decode(message.payload)
        self.resumes.append(resume)
        await self._play(resume.reply)

    async def _cancel(self, message: Incoming) -> None:
        self.cancels.append(decoder_of(Cancel).decode(message.payload))
        await self.bus.publish(message.reply, encode(Cancelled(request_id=ID)))

    async def _play(self, reply: str) -> None:
        for message in self._scripts.pop(0) if self._scripts else []:
            await self.bus.publish(reply, encode(message))


async def collect(stream: AnswerStream) -> list[str]:
    return [piece async for piece in stream.pieces()]


async def test_a_stream_is_read_to_its_ending() -> None:
    service = Service([ACCEPTED, *map(frame, range(4)), FINISHED])
    stream = AnswerStream(await service.start(), REQUEST, timeout_s=5)

    pieces = await collect(stream)

    assert WORDS == pieces
    assert stream.answer is not None
    assert ("The capital is Paris", [0, 1, 2, 3], "stop", "remote") == (
        stream.answer.text,
        stream.answer.token_ids,
        stream.answer.finish_reason,
        stream.answer.route,
    )
    assert [] == service.resumes
    assert [] == [s for s in service.broker.subscriptions if s.pattern.startswith("_INBOX")]


async def test_duplicates_and_a_late_accepted_do_no_harm() -> None:
    script = [frame(0), frame(0), ACCEPTED, frame(1), frame(0, 2), frame(1, 2), frame(2, 2)]
    service = Service([*script, frame(3), FINISHED, FINISHED])

    assert WORDS == await collect(AnswerStream(await service.start(), REQUEST, timeout_s=5))


async def test_a_gap_is_asked_for_once_and_filled() -> None:
    """Frames that follow the lost one are all behind the same gap."""
    lost = [ACCEPTED, frame(0), frame(2), frame(3)]
    service = Service(lost, [frame(1), frame(2), frame(3), FINISHED])
    stream = AnswerStream(await service.start(), REQUEST, timeout_s=5)

    assert WORDS == await collect(stream)
    assert [1] == [resume.from_index for resume in service.resumes]


async def test_an_ending_after_a_lost_frame_does_not_end_the_stream() -> None:
    service = Service([ACCEPTED, frame(0), frame(1), FINISHED], [frame(2), frame(3)])
    stream = AnswerStream(await service.start(), REQUEST, timeout_s=5)

    assert WORDS == await collect(stream)


async def test_silence_asks_for_the_rest() -> None:
    service = Service([ACCEPTED, frame(0)], [frame(1), frame(2), frame(3), FINISHED])
    stream = AnswerStream(await service.start(), REQUEST, timeout_s=5, silence_s=0.05)

    assert WORDS == await collect(stream)
    assert [1] == [resume.from_index for resume in service.resumes]


async def test_a_keep_alive_is_no_silence_and_no_text() -> None:
    service = Service([ACCEPTED, frame(0), keep_alive(1), *map(frame, range(1, 4)), FINISHED])

    assert WORDS == await collect(AnswerStream(await service.start(), REQUEST, timeout_s=5))


async def test_a_failure_ends_the_stream() -> None:
    failed = Failed(code="overloaded", message="full", retry_after_ms=1500)
    service = Service([failed])

    with pytest.raises(RequestFailedError, match=r"full \(try again in 1\.5 s\)") as raised:
        await collect(AnswerStream(await service.start(), REQUEST, timeout_s=5))
    assert "overloaded" == raised.value.code


async def test_without_a_scheduler_the_client_knows_at_once() -> None:
    with pytest.raises(NoRespondersError):
        await collect(AnswerStream(MemoryBus(), REQUEST, timeout_s=5))


async def test_the_deadline_ends_every_wait_and_the_request() -> None:
    service = Service([ACCEPTED, frame(0)])
    stream = AnswerStream(await service.start(), REQUEST, timeout_s=0.2, silence_s=0.05)

    with pytest.raises(DeadlineExceededError):
        await collect(stream)
    assert [ID] == [cancel.request_id for cancel in service.cancels]


async def test_what_can_not_be_had_any_more_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ending is there, the holder has forgotten the tokens: better an error than a hang."""
    monkeypatch.setattr("slipstream.shared.client.request_stream._RESUME_PAUSE_S", 0.0)
    service = Service([ACCEPTED, frame(0), FINISHED], [FINISHED], [FINISHED], [FINISHED])
    stream = AnswerStream(await service.start(), REQUEST, timeout_s=5)

    with pytest.raises(IncompleteStreamError, match="tokens from 1 on of 4"):
        await collect(stream)


async def test_cancel_names_the_request_and_needs_no_answer() -> None:
    service = Service([ACCEPTED, frame(0)])
    stream = AnswerStream(await service.start(), REQUEST, timeout_s=5)
    async for _ in stream.pieces():
        await stream.cancel()
        break

    assert [ID] == [cancel.request_id for cancel in service.cancels]


async def test_one_message_holds_a_whole_answer() -> None:
    bus = MemoryBus()

    async def answer(message: Incoming) -> None:
        choice = Choice(text="Paris", token_ids=PackedInts([3]), finish_reason="length")
        completion = Completion(
            request_id=ID,
            attempt=1,
            choices=[choice],
            usage=Usage(num_prompt_tokens=1, num_output_tokens=1),
            timings=Timings(),
        )
        await bus.publish(message.reply, encode(completion))

    await bus.subscribe(GENERATE.subject(), answer)

    answered = await complete(bus, GenerateRequest(prompt="?"), timeout_s=1)
    assert ("Paris", [3], "length") == (
        answered.text,
        answered.token_ids,
        answered.finish_reason,
    )


async def test_one_message_may_be_a_failure() -> None:
    bus = MemoryBus()

    async def refuse(message: Incoming) -> None:
        await bus.publish(message.reply, encode(Failed(code="invalid_request", message="empty")))

    await bus.subscribe(GENERATE.subject(), refuse)

    with pytest.raises(RequestFailedError, match="empty"):
        await complete(bus, GenerateRequest(prompt=""), timeout_s=1)
    await asyncio.sleep(0)
