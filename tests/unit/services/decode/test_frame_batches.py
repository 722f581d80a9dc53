"""Frames of one step to one gateway are one message, which overtakes nothing and loses nothing."""

import asyncio

import msgspec
import pytest

from slipstream.services.decode import publisher as publisher_module
from slipstream.services.decode.frame_batches import FrameBatches
from slipstream.services.decode.publisher import StreamPublisher
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.services.decode.stopping import Ending
from slipstream.shared.bus.bus import HEADER_ROOM
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus
from slipstream.shared.client.mailbox import Mailbox, MailRoom
from slipstream.shared.messages.codec import ClientAnswer, decode_batch, decoder_of
from slipstream.shared.messages.common import Timings
from slipstream.shared.messages.generate import Finished, TokenFrame
from slipstream.shared.messages.jobs import Encoding, ReplyTarget

from .decode_samples import make_job, make_sequence, say

_ROOM_BYTES = 4096


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(max_payload=HEADER_ROOM + 2000)


@pytest.fixture
async def publisher(broker: MemoryBroker) -> StreamPublisher:
    made = StreamPublisher(MemoryBus(broker), keep_s=60)
    await made.start()
    return made


@pytest.fixture
async def rooms(broker: MemoryBroker) -> list[MailRoom]:
    found = [MailRoom(MemoryBus(broker), _ROOM_BYTES) for _ in range(2)]
    for room in found:
        await room.start()
    return found


def _sequence(
    publisher: StreamPublisher, box: Mailbox, name: str, encoding: Encoding = "msgpack"
) -> DecodeSequence:
    reply = ReplyTarget(
        box.subject, encoding=encoding, is_streamed=True, gateway_id=box.batch_inbox
    )
    job = msgspec.structs.replace(make_job([1], request=name), reply=reply)
    sequence = make_sequence([1], job)
    publisher.open(sequence)
    return sequence


async def _events(box: Mailbox) -> list[TokenFrame | Finished]:
    async with asyncio.timeout(5):
        return [decoder_of(ClientAnswer).decode(each.payload) for each in await box.take()]


async def test_a_step_is_one_message_to_each_gateway(
    publisher: StreamPublisher, broker: MemoryBroker, rooms: list[MailRoom]
) -> None:
    boxes = [await room.open() for room in rooms for _ in range(3)]
    sequences = [_sequence(publisher, box, f"r{number}") for number, box in enumerate(boxes)]
    for letter in "ab":
        for number, sequence in enumerate(sequences):
            say(sequence, f"{letter}{number}")
            assert publisher.batch(sequence)
        await asyncio.sleep(0.01)

    sent = [each for each in broker.published if each.subject.endswith("batches")]
    assert 2 * len(rooms) == len(sent) == len(broker.published)
    assert [3, 3, 3, 3] == [len(decode_batch(each.payload)) for each in sent]
    for number, box in enumerate(boxes):
        frames = await _events(box)
        assert [f"a{number}", f"b{number}"] == [frame.text for frame in frames]
        assert {f"r{number}"} == {frame.request_id for frame in frames}


async def test_an_ending_comes_after_the_frames_of_its_step(
    publisher: StreamPublisher, rooms: list[MailRoom]
) -> None:
    box = await rooms[0].open()
    sequence = _sequence(publisher, box, "r")
    say(sequence, "ab")
    publisher.batch(sequence)
    say(sequence, "c")
    await publisher.finish(
        sequence, sequence.log.finish(Ending("stop"), sequence.usage(), Timings(), "fake")
    )
    await asyncio.sleep(0.01)

    kinds = [type(each) for each in await _events(box)]
    assert Finished is kinds[-1]
    assert [TokenFrame] * (len(kinds) - 1) == kinds[:-1]


async def test_what_is_too_large_for_one_message_is_several(
    publisher: StreamPublisher, broker: MemoryBroker, rooms: list[MailRoom]
) -> None:
    boxes = [await rooms[0].open() for _ in range(6)]
    for number, box in enumerate(boxes):
        sequence = _sequence(publisher, box, f"r{number}")
        say(sequence, "x" * 100)
        publisher.batch(sequence)
    await asyncio.sleep(0.01)

    assert 1 < len(broker.published) < len(boxes)
    assert ["x" * 100] * len(boxes) == [(await _events(box))[0].text for box in boxes]


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_who_takes_no_batches_gets_single_frames(
    publisher: StreamPublisher, broker: MemoryBroker, rooms: list[MailRoom], encoding: Encoding
) -> None:
    box = await rooms[0].open()
    if encoding == "msgpack":
        box.batch_inbox = None  # type: ignore[assignment] # a reader without a room
    sequence = _sequence(publisher, box, "r", encoding)
    say(sequence, "ab")

    assert not publisher.batch(sequence)
    await publisher.progress(sequence)
    assert [box.subject] == [each.subject for each in broker.published]


async def test_a_full_box_misses_frames_and_the_others_do_not(
    publisher: StreamPublisher, rooms: list[MailRoom]
) -> None:
    slow, quick = await rooms[0].open(), await rooms[0].open()
    sequences = [_sequence(publisher, slow, "slow"), _sequence(publisher, quick, "quick")]
    read = 0
    for _ in range(30):
        for sequence in sequences:
            say(sequence, "x" * 200)
            publisher.batch(sequence)
        await asyncio.sleep(0)
        await asyncio.sleep(0.002)
        read += len(await _events(quick))

    assert 30 == read
    kept = await _events(slow)
    assert len(kept) + rooms[0].num_dropped_frames == 30
    assert sum(len(each.text) for each in kept) < _ROOM_BYTES + 600


async def test_quiet_streams_of_a_gateway_are_kept_alive_by_one_message(
    publisher: StreamPublisher,
    broker: MemoryBroker,
    rooms: list[MailRoom],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher_module, "KEEP_ALIVE_S", 0.05)
    boxes = [await rooms[0].open() for _ in range(20)]
    for number, box in enumerate(boxes):
        _sequence(publisher, box, f"r{number}")
    loop = asyncio.create_task(publisher.keep_alive_loop())
    await asyncio.sleep(0.08)
    loop.cancel()

    assert 1 == len(broker.published)
    assert 20 == len(decode_batch(broker.published[0].payload))


async def test_streams_of_a_gateway_that_is_gone_are_given_up(
    publisher: StreamPublisher, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "KEEP_ALIVE_S", 0.03)
    monkeypatch.setattr(publisher_module, "GONE_AFTER_S", 0.1)
    monkeypatch.setattr("slipstream.services.decode.frame_batches._PROBE_S", 0.03)
    gone = MailRoom(MemoryBus(broker), _ROOM_BYTES)  # it listens to nothing
    sequences = [_sequence(publisher, await gone.open(), f"r{number}") for number in range(3)]
    loop = asyncio.create_task(publisher.keep_alive_loop())
    async with asyncio.timeout(5):
        while not all(each.cancel_reason == "client_gone" for each in sequences):
            for each in sequences:
                say(each, "a")
                publisher.batch(each)
            await asyncio.sleep(0.01)
    loop.cancel()


async def test_of_gateways_that_anybody_may_name_only_the_last_are_remembered() -> None:
    batches = FrameBatches(MemoryBus(), "_INBOX.probes")
    for number in range(300):
        batches.add(f"_INBOX.gateway{number}", "box", b"\x90")
        await batches.flush()

    assert len(batches._probes) == 256
    assert (None, "_INBOX.gateway299") == (batches.gateway_of("G0"), batches.gateway_of("G299"))
