"""Streams on the bus: frames, endings, replays, keep-alives, clients that went away."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipstream.services.decode import publisher as publisher_module
from slipstream.services.decode.publisher import StreamPublisher
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.services.decode.stopping import Ending
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus
from slipstream.shared.errors import DisconnectedError
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encoding_of
from slipstream.shared.messages.common import Failed, Timings
from slipstream.shared.messages.generate import Completion, Finished, Resume, TokenFrame

from .decode_samples import INBOX, make_sequence, say

READER = "_INBOX.reader.1"


class Reader:
    """What an inbox got."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.encodings: list[str] = []
        self.changed = asyncio.Event()

    async def take(self, incoming: Incoming) -> None:
        self.messages.append(decoder_of(ClientAnswer).decode(incoming.payload))
        self.encodings.append(encoding_of(incoming.payload))
        self.changed.set()

    @property
    def text(self) -> str:
        return "".join(each.text for each in self.messages if isinstance(each, TokenFrame))


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus(MemoryBroker(max_payload=16_384))


@pytest.fixture
async def publisher(bus: MemoryBus) -> StreamPublisher:
    made = StreamPublisher(bus, keep_s=60)
    await made.start()
    return made


@pytest.fixture
async def client(bus: MemoryBus) -> Reader:
    return await listen(bus, INBOX)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "KEEP_ALIVE_S", 0.03)
    monkeypatch.setattr(publisher_module, "GONE_AFTER_S", 0.15)


@pytest.fixture
async def keeping_alive(quickly: None, publisher: StreamPublisher) -> AsyncIterator[None]:
    loop = asyncio.create_task(publisher.keep_alive_loop())
    yield
    assert not loop.done(), "nothing may end this loop"
    loop.cancel()


async def listen(bus: MemoryBus, inbox: str) -> Reader:
    reader = Reader()
    await bus.subscribe(inbox, reader.take)
    return reader


async def finish(publisher: StreamPublisher, sequence: DecodeSequence) -> Failed | None:
    answer = sequence.log.finish(Ending("stop"), sequence.usage(), Timings(), "fake")
    failed = await publisher.finish(sequence, answer)
    await publisher._bus.flush()
    return failed


async def resume(publisher: StreamPublisher, from_index: int = 0, **fields: Any) -> Failed | None:
    message = Resume(request_id="r", reply=READER, from_index=from_index, **fields)  # type: ignore[arg-type] # plain strings are ids
    answer = await publisher.resume(message)
    await publisher._bus.flush()
    return answer


async def test_frames_then_the_ending(publisher: StreamPublisher, client: Reader) -> None:
    sequence = make_sequence([1])
    publisher.open(sequence)
    for text in ("a", "bc"):
        say(sequence, text)
        await publisher.progress(sequence)
    say(sequence, "d")
    await finish(publisher, sequence)

    assert [TokenFrame] * 3 + [Finished] == [type(each) for each in client.messages]
    assert "abcd" == client.text


async def test_a_reader_may_take_what_it_missed_in_pieces(
    publisher: StreamPublisher, bus: MemoryBus
) -> None:
    reader = await listen(bus, READER)
    sequence = make_sequence([1])
    publisher.open(sequence)
    for letter in "abcdefg":
        say(sequence, letter)
    await finish(publisher, sequence)

    for start, text in ((0, "abc"), (3, "def"), (6, "g"), (7, "")):
        reader.messages.clear()
        await resume(publisher, start, max_num_tokens=3)
        frame, ending = reader.messages
        assert isinstance(frame, TokenFrame)
        assert (start, start, text) == (frame.index, frame.text_offset, frame.text)
        assert len(text) == len(frame.token_ids)
        assert isinstance(ending, Finished)


async def test_a_plain_request_gets_one_message(publisher: StreamPublisher, client: Reader) -> None:
    sequence = make_sequence([1], is_streamed=False)
    publisher.open(sequence)
    say(sequence, "ab")
    await publisher.progress(sequence)
    await finish(publisher, sequence)

    (answer,) = client.messages
    assert isinstance(answer, Completion)
    assert "ab" == answer.choices[0].text


async def test_an_answer_too_large_for_a_message_says_so(
    publisher: StreamPublisher, client: Reader
) -> None:
    sequence = make_sequence([1], is_streamed=False, max_tokens=100_000)
    sequence.checker._max_tokens = 100_000
    publisher.open(sequence)
    say(sequence, "x" * 13_000)
    failed = await finish(publisher, sequence)

    (answer,) = client.messages
    assert isinstance(answer, Failed)
    assert answer == failed, "whoever counts endings must know"
    assert ("message_too_large", True) == (answer.code, "stream: true" in answer.message)


async def test_a_running_stream_can_be_resumed_from_any_index(
    publisher: StreamPublisher, client: Reader, bus: MemoryBus
) -> None:
    reader = await listen(bus, READER)
    sequence = make_sequence([1])
    publisher.open(sequence)
    say(sequence, "abcd")
    await publisher.progress(sequence)

    assert await resume(publisher, 2) is None
    assert "cd" == reader.text
    await resume(publisher, -5)
    assert "abcd" == reader.messages[-1].text
    await resume(publisher, 99)
    assert ("", 4) == (reader.messages[-1].text, reader.messages[-1].index)
    assert "abcd" == client.text, "its own client sees nothing of it"


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_an_ended_stream_is_told_again_with_its_ending(
    publisher: StreamPublisher, bus: MemoryBus, encoding: Any
) -> None:
    reader = await listen(bus, READER)
    sequence = make_sequence([1], encoding=encoding)
    publisher.open(sequence)
    say(sequence, "ab")
    await finish(publisher, sequence)
    await resume(publisher, 1)

    assert "b" == reader.text
    assert isinstance(reader.messages[-1], Finished)
    assert {encoding} == set(reader.encodings)


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_a_failure_is_told_again_as_its_client_reads(
    publisher: StreamPublisher, bus: MemoryBus, encoding: Any
) -> None:
    reader = await listen(bus, READER)
    sequence = make_sequence([1], encoding=encoding)
    publisher.open(sequence)
    await publisher.fail(sequence, Failed("code", "message"))
    await resume(publisher)

    assert [Failed("code", "message")] == reader.messages
    assert [encoding] == reader.encodings


async def test_an_unknown_stream_and_a_reply_that_is_no_inbox_are_refused(
    publisher: StreamPublisher,
) -> None:
    unknown = await resume(publisher)
    message = Resume(request_id="r", reply="slipstream.v1.generate")  # type: ignore[arg-type] # plain strings are ids
    refused = await publisher.resume(message)

    assert unknown is not None
    assert refused is not None
    assert ("not_found", "reply") == (unknown.code, refused.field)


async def test_the_next_attempt_keeps_its_stream_when_the_old_one_ends(
    publisher: StreamPublisher, bus: MemoryBus
) -> None:
    reader = await listen(bus, READER)
    old, new = make_sequence([1]), make_sequence([1], attempt=2)
    publisher.open(old)
    publisher.open(new)
    publisher.forget(old)
    say(new, "ab")
    await resume(publisher)

    assert "ab" == reader.text


async def test_a_quiet_stream_is_kept_alive(
    publisher: StreamPublisher, client: Reader, keeping_alive: None
) -> None:
    sequence = make_sequence([1])
    publisher.open(sequence)
    say(sequence, "a")
    await publisher.progress(sequence)
    async with asyncio.timeout(5):
        while len(client.messages) < 3:
            client.changed.clear()
            await client.changed.wait()

    frame = client.messages[-1]
    assert (1, 0, "") == (frame.index, len(frame.token_ids), frame.text)
    assert sequence.cancel_reason is None


@pytest.mark.parametrize("is_talking", [True, False])
async def test_a_client_that_is_gone_is_noticed(
    publisher: StreamPublisher, keeping_alive: None, is_talking: bool
) -> None:
    """Also in the middle of a lively stream."""
    sequence = make_sequence([1])
    publisher.open(sequence)
    async with asyncio.timeout(5):
        while sequence.cancel_reason is None:
            if is_talking:
                say(sequence, "a")
                await publisher.progress(sequence)
            await asyncio.sleep(0.005)

    assert "client_gone" == sequence.cancel_reason


async def test_a_client_that_comes_back_is_not_gone(
    publisher: StreamPublisher, bus: MemoryBus, keeping_alive: None
) -> None:
    sequence = make_sequence([1])
    publisher.open(sequence)
    async with asyncio.timeout(5):
        while not publisher._misses:
            await asyncio.sleep(0.005)
    await listen(bus, INBOX)
    async with asyncio.timeout(5):
        while publisher._misses:
            await asyncio.sleep(0.005)

    assert sequence.cancel_reason is None


async def test_a_broken_connection_ends_neither_loop_nor_memory(
    publisher: StreamPublisher, keeping_alive: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise DisconnectedError("x")

    sequence = make_sequence([1])
    publisher.open(sequence)
    say(sequence, "a")
    with monkeypatch.context() as patch:
        patch.setattr(publisher._bus, "publish", fail)
        await asyncio.sleep(0.1)
        with pytest.raises(DisconnectedError):
            await finish(publisher, sequence)

    assert not publisher._running
    assert ["r"] == list(publisher._ended), "who comes back can have it"


async def test_old_streams_are_forgotten(bus: MemoryBus, quickly: None) -> None:
    publisher = StreamPublisher(bus, keep_s=0.05)
    for number in range(5):
        sequence = make_sequence([1], request=f"r{number}")
        publisher.open(sequence)
        await finish(publisher, sequence)
    loop = asyncio.create_task(publisher.keep_alive_loop())
    async with asyncio.timeout(5):
        while publisher._ended:
            await asyncio.sleep(0.005)
    loop.cancel()

    tables = (publisher._running, publisher._misses, publisher._last_sent, publisher._last_probe)
    assert [0] * 4 == [len(table) for table in tables]


async def test_what_is_too_large_to_resume_at_once_comes_in_several_frames(
    publisher: StreamPublisher, bus: MemoryBus
) -> None:
    reader = await listen(bus, READER)
    sequence = make_sequence([1])
    publisher.open(sequence)
    text = "".join(f"{number:04d}" for number in range(2500))
    say(sequence, text)
    assert await resume(publisher, 3) is None
    frames = reader.messages

    assert 1 < len(frames) < 50
    assert text[3:] == reader.text
    ends = [
        (each.index + len(each.token_ids), each.text_offset + len(each.text)) for each in frames
    ]
    begins = [(each.index, each.text_offset) for each in frames]
    assert [(3, 3), *ends[:-1]] == begins, "no gap and no overlap"


async def test_an_ending_waits_for_the_connection(
    publisher: StreamPublisher, bus: MemoryBus, client: Reader
) -> None:
    sequence = make_sequence([1])
    publisher.open(sequence)
    say(sequence, "a")
    bus.connection.lost()
    finishing = asyncio.create_task(finish(publisher, sequence))
    await asyncio.sleep(0.01)
    assert not client.messages
    bus.connection.back()
    await finishing

    assert [TokenFrame, Finished] == [type(each) for each in client.messages]


async def test_ended_streams_age_by_the_clock_of_the_connection(
    publisher: StreamPublisher, bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still while nobody could ask for them."""
    seconds = [0.0]
    monkeypatch.setattr(bus.connection, "now", lambda: seconds[0])
    sequence = make_sequence([1])
    publisher.open(sequence)
    say(sequence, "a")
    await finish(publisher, sequence)
    seconds[0] = 59.0
    await publisher._keep_alive(1e9)
    assert await resume(publisher) is None
    seconds[0] = 61.0
    await publisher._keep_alive(1e9)

    gone = await resume(publisher)
    assert gone is not None
    assert "not_found" == gone.code
