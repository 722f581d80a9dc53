"""The durable queue and the results: in memory as on a server, and what only a server does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from slipstream.shared.bus.durable import (
    BODY_DIGEST,
    MESSAGE_ID,
    Durable,
    DurableLimits,
    DurableMessage,
    StorageError,
    TooLargeToStoreError,
)
from slipstream.shared.bus.memory_durable import MemoryDurable
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import (
    DEAD,
    DEAD_STREAM,
    RESULTS_BUCKET,
    SUBMIT,
    SUBMIT_MODEL,
    SUBMIT_STREAM,
)
from slipstream.shared.errors import ConfigurationError

LIMITS = DurableLimits(
    redelivery_s=1.0,
    max_num_queued=100,
    max_queued_bytes=2**20,
    max_message_bytes=1000,
    max_result_bytes=2**20,
    max_dead_bytes=2**20,
)


@pytest.fixture
async def bus(own_nats_server: Any) -> AsyncIterator[NatsBus]:
    made = await NatsBus.connect(own_nats_server.url, "test")
    yield made
    await made.close()


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.nats)])
async def durable(request: pytest.FixtureRequest) -> AsyncIterator[Durable]:
    if request.param == "memory":
        made: Durable = MemoryDurable()
        await made.ensure(LIMITS)
        yield made
        return
    server = request.getfixturevalue("own_nats_server")
    bus = await NatsBus.connect(server.url, "test")
    made = bus.durable()
    await made.ensure(LIMITS)
    yield made
    await bus.close()


@pytest.fixture
async def stored(bus: NatsBus) -> Any:
    made = bus.durable()
    await made.ensure(LIMITS)
    return made


async def take(durable: Durable) -> DurableMessage:
    message = await durable.queue.take(2.0)
    assert message is not None
    return message


async def test_a_message_is_taken_with_all_that_its_publisher_wrote(durable: Durable) -> None:
    first = await durable.publish(SUBMIT.subject(), b"1", {"traceparent": "t"})
    second = await durable.publish(SUBMIT_MODEL.subject(model="m"), b"2")
    one, two = await take(durable), await take(durable)

    assert first < second
    assert (first, SUBMIT.subject(), b"1", 1) == (
        one.sequence,
        one.subject,
        one.payload,
        one.num_deliveries,
    )
    assert "t" == one.headers["traceparent"]
    assert (second, b"2") == (two.sequence, two.payload)
    assert 0 <= one.age_s < 60


async def test_what_is_acknowledged_is_gone(durable: Durable) -> None:
    await durable.publish(SUBMIT.subject(), b"1")
    message = await take(durable)
    taken = await durable.queue.counts()
    await message.ack()

    assert (0, 1) == taken
    assert (0, 0) == await durable.queue.counts()
    assert await durable.queue.take(0.1) is None


async def test_what_is_put_back_comes_again(durable: Durable) -> None:
    await durable.publish(SUBMIT.subject(), b"1")
    message = await take(durable)
    await message.retry()
    again = await take(durable)

    assert (message.sequence, b"1", 2) == (again.sequence, again.payload, again.num_deliveries)


async def test_one_id_is_stored_once(durable: Durable) -> None:
    sequences = [await durable.publish(SUBMIT.subject(), b"1", {MESSAGE_ID: "a"}) for _ in range(2)]
    message = await take(durable)
    await message.ack()

    assert [message.sequence] * 2 == sequences
    assert await durable.queue.take(0.1) is None


async def test_what_is_too_large_to_store_is_refused_with_the_limit(durable: Durable) -> None:
    with pytest.raises(TooLargeToStoreError, match="1001 bytes is above") as caught:
        await durable.publish(SUBMIT.subject(), b"x" * 1001)

    assert (1001, 1000) == (caught.value.num_bytes, caught.value.limit)


async def test_dead_letters_are_not_in_the_queue(durable: Durable) -> None:
    await durable.publish(DEAD.subject(reason="lost"), b"1")

    assert await durable.queue.take(0.1) is None


async def test_the_first_result_stays(durable: Durable) -> None:
    nothing = await durable.results.get("seq-1")
    created = [
        await durable.results.create("seq-1", value, {BODY_DIGEST: value.decode()})
        for value in (b"1", b"2")
    ]
    found = await durable.results.get("seq-1")

    assert nothing is None
    assert [True, False] == created
    assert found is not None
    assert (b"1", "1") == (found.value, found.headers[BODY_DIGEST])


async def test_of_many_writers_one_is_the_first(durable: Durable) -> None:
    values = [b"%d" % number for number in range(8)]
    created = await asyncio.gather(
        *(durable.results.create("k", value, {BODY_DIGEST: "d"}) for value in values)
    )
    found = await durable.results.get("k")

    assert 1 == sum(created)
    assert found is not None
    assert values[created.index(True)] == found.value


@pytest.mark.nats
async def test_silence_gives_a_message_to_the_next(stored: Any) -> None:
    await stored.publish(SUBMIT.subject(), b"1")
    message = await take(stored)
    for _ in range(4):
        await asyncio.sleep(0.4)
        await message.keep()
    kept = await stored.queue.take(0.3)
    again = await stored.queue.take(3.0)

    assert kept is None
    assert 2 == again.num_deliveries


@pytest.mark.nats
async def test_a_delay_is_waited_for(stored: Any) -> None:
    await stored.publish(SUBMIT.subject(), b"1")
    await (await take(stored)).retry(0.5)
    early = await stored.queue.take(0.2)

    assert early is None
    assert await stored.queue.take(3.0) is not None


@pytest.mark.nats
async def test_any_kv_client_reads_results(stored: Any, bus: NatsBus) -> None:
    await stored.results.create("seq-1", b"1", {BODY_DIGEST: "d"})
    bucket = await bus.client.jetstream().key_value(RESULTS_BUCKET)
    entry = await bucket.get("seq-1")
    await bucket.delete("seq-1")
    deleted = await stored.results.get("seq-1")
    again = await stored.results.create("seq-1", b"2", {BODY_DIGEST: "d"})

    assert b"1" == entry.value
    assert deleted is None
    assert again
    assert (b"2", 86_400) == ((await bucket.get("seq-1")).value, (await bucket.status()).ttl)


@pytest.mark.nats
async def test_a_result_fades_after_its_time(bus: NatsBus) -> None:
    durable = bus.durable()
    await durable.ensure(replace(LIMITS, result_keep_s=1.0))
    await durable.results.create("seq-1", b"1", {BODY_DIGEST: "d"})
    async with asyncio.timeout(10):
        while await durable.results.get("seq-1") is not None:
            await asyncio.sleep(0.1)

    assert await durable.results.create("seq-1", b"2", {BODY_DIGEST: "d"})


@pytest.mark.nats
@pytest.mark.parametrize(
    ("limits", "payload", "said"),
    [
        ({"max_num_queued": 1}, b"1", "maximum messages exceeded"),
        ({"max_queued_bytes": 1000}, b"x" * 900, "maximum bytes exceeded"),
        ({}, b"x" * 1001, "is above the limit of 1000 bytes"),
    ],
)
async def test_a_publisher_is_told_what_is_not_stored(
    bus: NatsBus, limits: dict[str, Any], payload: bytes, said: str
) -> None:
    durable = bus.durable()
    await durable.ensure(replace(LIMITS, **limits))
    await durable.publish(SUBMIT.subject(), b"x" * 500)
    with pytest.raises(StorageError, match=said):
        await durable.publish(SUBMIT.subject(), payload)


@pytest.mark.nats
async def test_new_settings_are_taken_over(stored: Any, bus: NatsBus) -> None:
    await stored.publish(SUBMIT.subject(), b"1")
    changed = DurableLimits(
        redelivery_s=7.0,
        max_num_queued=50,
        max_queued_bytes=2**21,
        max_message_bytes=2000,
        result_keep_s=100.0,
        max_result_bytes=2**21,
        dead_keep_s=200.0,
        max_dead_bytes=2**21,
    )
    await bus.durable().ensure(changed)
    await bus.durable().ensure(changed)
    stream = bus.client.jetstream()
    names = (SUBMIT_STREAM, f"KV_{RESULTS_BUCKET}", DEAD_STREAM)
    queue, results, dead = [(await stream.stream_info(name)).config for name in names]
    consumer = (await stream.consumer_info(SUBMIT_STREAM, "scheduler")).config

    assert (50, 2**21, 2000) == (queue.max_msgs, queue.max_bytes, queue.max_msg_size)
    assert (100, 2**21) == (results.max_age, results.max_bytes)
    assert (200, 2**21) == (dead.max_age, dead.max_bytes)
    assert 7 == consumer.ack_wait
    assert b"1" == (await take(stored)).payload


@pytest.mark.nats
async def test_several_make_the_streams_at_once(own_nats_server: Any) -> None:
    buses = [await NatsBus.connect(own_nats_server.url, "test") for _ in range(4)]
    limits = [replace(LIMITS, max_num_queued=10 + number) for number in range(4)]
    await asyncio.gather(
        *(bus.durable().ensure(each) for bus, each in zip(buses, limits, strict=True))
    )
    await buses[0].durable().publish(SUBMIT.subject(), b"1")
    for bus in buses:
        await bus.close()


@pytest.mark.nats
@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"name": SUBMIT_STREAM, "subjects": [SUBMIT.pattern], "retention": "limits"},
            f"{SUBMIT_STREAM} is there with retention limits in place of workqueue",
        ),
        (
            {"name": DEAD_STREAM, "subjects": [DEAD.wildcard], "storage": "memory"},
            "storage memory in place of file",
        ),
        ({"name": "theirs", "subjects": ["slipstream.v1.*"]}, "another JetStream stream captures"),
    ],
)
async def test_a_stream_in_the_way_is_named(
    bus: NatsBus, config: dict[str, Any], said: str
) -> None:
    await bus.client.jetstream().add_stream(**config)
    with pytest.raises(ConfigurationError, match=said):
        await bus.durable().ensure(LIMITS)


@pytest.mark.nats
async def test_a_server_without_room_says_what_to_change(bus: NatsBus) -> None:
    with pytest.raises(ConfigurationError, match=r"max_file_store .* --max-result-bytes"):
        await bus.durable().ensure(replace(LIMITS, max_result_bytes=2**50))


@pytest.mark.nats
async def test_a_queue_made_again_has_other_numbers(stored: Any, bus: NatsBus) -> None:
    first = await stored.publish(SUBMIT.subject(), b"1")
    await bus.client.jetstream().delete_stream(SUBMIT_STREAM)
    with pytest.raises(StorageError):
        await take(stored)
    await asyncio.sleep(0.005)
    await stored.ensure(LIMITS)

    assert await stored.publish(SUBMIT.subject(), b"2") > first
    assert b"2" == (await take(stored)).payload


@pytest.mark.nats
async def test_a_restarted_server_has_what_was_stored(
    own_nats_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.shared.bus.nats_bus.RECONNECT_WAIT_S", 0.05)
    bus = await NatsBus.connect(own_nats_server.url, "test")
    stored = bus.durable()
    await stored.ensure(LIMITS)
    await stored.publish(SUBMIT.subject(), b"1")
    await stored.results.create("seq-1", b"r", {BODY_DIGEST: "d"})
    await take(stored)
    own_nats_server.stop()
    async with asyncio.timeout(5):
        while bus.client.is_connected:
            await asyncio.sleep(0.01)
    with pytest.raises(StorageError):
        await stored.queue.take(0.1)
    own_nats_server.start()
    message = None
    async with asyncio.timeout(15):
        while message is None:
            try:
                message = await stored.queue.take(1.0)
            except StorageError:
                await asyncio.sleep(0.1)

    found = await stored.results.get("seq-1")
    await bus.close()

    assert (b"1", 2) == (message.payload, message.num_deliveries)
    assert found is not None
    assert b"r" == found.value


@pytest.mark.nats
async def test_lower_limits_drop_nothing_that_was_taken_in(stored: Any, bus: NatsBus) -> None:
    for number in range(3):
        await stored.publish(SUBMIT.subject(), b"x" * 900)
        await stored.results.create(f"seq-{number}", b"x" * 900, {BODY_DIGEST: "d"})
    lower = replace(LIMITS, max_num_queued=1, max_queued_bytes=1000, max_result_bytes=1000)
    await bus.durable().ensure(lower)

    assert (3, 0) == await stored.queue.counts()
    assert all([await stored.results.get(f"seq-{number}") for number in range(3)])
    with pytest.raises(StorageError):
        await stored.publish(SUBMIT.subject(), b"1")


@pytest.mark.nats
async def test_a_server_without_jetstream_is_trouble_that_may_pass(
    plain_nats_server: Any,
) -> None:
    bus = await NatsBus.connect(plain_nats_server.url, "test")
    durable = bus.durable()
    with pytest.raises(StorageError, match="JetStream can't be used for submissions"):
        await durable.ensure(LIMITS)
    with pytest.raises(StorageError):
        await durable.queue.take(0.5)
    with pytest.raises(StorageError):
        await durable.results.get("seq-1")
    await bus.close()
