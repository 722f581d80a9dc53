"""One behaviour of two buses: in memory and, marked `nats`, on a real server."""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable

import pytest

from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.errors import (
    DeadlineExceededError,
    MessageTooLargeError,
    NoRespondersError,
)

Connect = Callable[[], Awaitable[Bus]]


class Mailbox:
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[Incoming] = []
        self._arrived = asyncio.Condition()

    async def __call__(self, message: Incoming) -> None:
        """Take a message."""
        self.messages.append(message)
        async with self._arrived:
            self._arrived.notify_all()

    @property
    def payloads(self) -> list[bytes]:
        """What came, in order."""
        return [message.payload for message in self.messages]

    async def wait_for(self, num_messages: int) -> None:
        """Return when so many have come."""
        async with asyncio.timeout(5), self._arrived:
            await self._arrived.wait_for(lambda: len(self.messages) >= num_messages)


async def settle(*buses: Bus) -> None:
    """Return when everything published so far has been handed to its handlers."""
    for bus in buses:
        await bus.flush()
    await asyncio.sleep(0.05)


async def test_message_arrives_with_subject_payload_and_headers(bus: Bus, subject: str) -> None:
    inbox = Mailbox()
    await bus.subscribe(subject, inbox)
    await bus.publish(
        subject, b"\0\xff", reply="_INBOX.x", headers={"traceparent": "00-1", "b": "ü"}
    )
    await inbox.wait_for(1)
    (message,) = inbox.messages

    assert (subject, b"\0\xff", "_INBOX.x") == (message.subject, message.payload, message.reply)
    assert {"traceparent": "00-1", "b": "ü"} == dict(message.headers or {})


async def test_message_without_headers_has_none(bus: Bus, subject: str) -> None:
    inbox = Mailbox()
    await bus.subscribe(subject, inbox)
    await bus.publish(subject, b"")
    await inbox.wait_for(1)

    assert not inbox.messages[0].headers
    assert not inbox.messages[0].is_no_responders


async def test_wildcards_cover_one_token_or_the_rest(bus: Bus, subject: str) -> None:
    one, rest = Mailbox(), Mailbox()
    await bus.subscribe(f"{subject}.*", one)
    await bus.subscribe(f"{subject}.>", rest)
    for tail in ("a", "a.b"):
        await bus.publish(f"{subject}.{tail}", tail.encode())
    await bus.publish(subject, b"none")
    await rest.wait_for(2)
    await settle(bus)

    assert [b"a"] == one.payloads
    assert [b"a", b"a.b"] == rest.payloads


async def test_queue_group_shares_and_others_get_all(connect: Connect, subject: str) -> None:
    members = [await connect() for _ in range(3)]
    inboxes = [Mailbox() for _ in members]
    listener = Mailbox()
    for member, inbox in zip(members, inboxes, strict=True):
        await member.subscribe(subject, inbox, queue="group")
    await members[0].subscribe(subject, listener)
    await settle(*members)
    for number in range(60):
        await members[0].publish(subject, bytes([number]))
    await listener.wait_for(60)
    await settle(*members)
    shared = list(itertools.chain(*(inbox.payloads for inbox in inboxes)))

    assert 60 == len(shared) == len(set(shared))
    assert all(inbox.messages for inbox in inboxes)


async def test_queue_group_is_known_by_its_name_across_patterns(bus: Bus, subject: str) -> None:
    """A service may list several subjects: a message that fits two of them comes once."""
    inbox = Mailbox()
    await bus.subscribe(f"{subject}.a", inbox, queue="group")
    await bus.subscribe(f"{subject}.*", inbox, queue="group")
    await bus.publish(f"{subject}.a", b"1")
    await inbox.wait_for(1)
    await settle(bus)

    assert [b"1"] == inbox.payloads


async def test_request_gets_the_answer(connect: Connect, subject: str) -> None:
    server, client = await connect(), await connect()

    async def answer(message: Incoming) -> None:
        await server.publish(message.reply, message.payload[::-1], headers={"name": "text"})

    await server.subscribe(subject, answer, queue="group")
    await settle(server)
    message = await client.request(subject, b"abc", timeout_s=2, headers={"asked": "yes"})

    assert b"cba" == message.payload
    assert "text" == (message.headers or {})["name"]


async def test_request_to_nobody_fails_at_once(bus: Bus, subject: str) -> None:
    async with asyncio.timeout(2):
        with pytest.raises(NoRespondersError, match=subject):
            await bus.request(subject, b"", timeout_s=20)


async def test_request_without_an_answer_ends_with_its_deadline(bus: Bus, subject: str) -> None:
    await bus.subscribe(subject, Mailbox())
    with pytest.raises(DeadlineExceededError, match=subject):
        await bus.request(subject, b"", timeout_s=0.1)


async def test_answer_after_the_deadline_is_dropped(bus: Bus, subject: str) -> None:
    async def answer(message: Incoming) -> None:
        await asyncio.sleep(0.2)
        await bus.publish(message.reply, b"late")

    await bus.subscribe(subject, answer)
    with pytest.raises(DeadlineExceededError):
        await bus.request(subject, b"", timeout_s=0.05)
    await asyncio.sleep(0.3)


async def test_publish_with_a_reply_to_nobody_is_answered_by_the_server(
    bus: Bus, subject: str
) -> None:
    inbox = Mailbox()
    reply = bus.new_inbox()
    await bus.subscribe(reply, inbox)
    await bus.publish(subject, b"", reply=reply)
    await inbox.wait_for(1)

    assert inbox.messages[0].is_no_responders


async def test_inboxes_differ(connect: Connect) -> None:
    one, other = await connect(), await connect()

    assert 4 == len({one.new_inbox(), one.new_inbox(), other.new_inbox(), other.new_inbox()})


@pytest.mark.parametrize("with_headers", [False, True])
async def test_message_above_the_limit_is_refused_before_it_leaves(
    bus: Bus, subject: str, *, with_headers: bool
) -> None:
    inbox = Mailbox()
    await bus.subscribe(subject, inbox)
    num_bytes = bus.max_payload - (5_000 if with_headers else 4_095)
    headers = {"baggage": "x" * 5_000} if with_headers else None
    with pytest.raises(MessageTooLargeError) as caught:
        await bus.publish(subject, bytes(num_bytes), headers=headers)
    with pytest.raises(MessageTooLargeError):
        await bus.request(subject, bytes(num_bytes), timeout_s=1, headers=headers)
    await bus.publish(subject, b"after")
    await inbox.wait_for(1)

    assert num_bytes == caught.value.num_bytes > caught.value.limit
    assert [b"after"] == inbox.payloads


async def test_largest_message_passes(bus: Bus, subject: str) -> None:
    inbox = Mailbox()
    await bus.subscribe(subject, inbox)
    await bus.publish(subject, bytes(bus.max_payload - 4_096), headers={"name": "x" * 3_900})
    await inbox.wait_for(1)

    assert bus.max_payload - 4_096 == len(inbox.payloads[0])


async def test_handlers_start_in_the_order_of_arrival(bus: Bus, subject: str) -> None:
    started: list[int] = []
    ended: list[int] = []

    async def handle(message: Incoming) -> None:
        number = int(message.payload)
        started.append(number)
        await asyncio.sleep(0.02 if number % 2 else 0)
        ended.append(number)

    await bus.subscribe(subject, handle)
    for number in range(50):
        await bus.publish(subject, str(number).encode())
    await settle(bus)

    assert list(range(50)) == started
    assert ended != started


async def test_slow_handler_does_not_hold_up_the_next_message(bus: Bus, subject: str) -> None:
    go_on = asyncio.Event()
    inbox = Mailbox()

    async def handle(message: Incoming) -> None:
        if message.payload == b"slow":
            await go_on.wait()
        await inbox(message)

    await bus.subscribe(subject, handle)
    await bus.publish(subject, b"slow")
    await bus.publish(subject, b"fast")
    await inbox.wait_for(1)
    go_on.set()
    await inbox.wait_for(2)

    assert [b"fast", b"slow"] == inbox.payloads


async def test_exception_of_a_handler_does_not_end_the_subscription(bus: Bus, subject: str) -> None:
    inbox = Mailbox()

    async def handle(message: Incoming) -> None:
        if message.payload == b"bad":
            raise RuntimeError("on purpose")
        await inbox(message)

    await bus.subscribe(subject, handle)
    await bus.publish(subject, b"bad")
    await bus.publish(subject, b"good")
    await inbox.wait_for(1)

    assert [b"good"] == inbox.payloads


async def test_stopped_subscription_has_handled_what_came_and_takes_no_more(
    bus: Bus, subject: str
) -> None:
    ended: list[bytes] = []

    async def handle(message: Incoming) -> None:
        await asyncio.sleep(0.05)
        ended.append(message.payload)

    subscription = await bus.subscribe(subject, handle)
    for number in range(100):
        await bus.publish(subject, bytes([number]))
    await subscription.stop()
    num_ended = len(ended)
    await bus.publish(subject, b"late")
    await settle(bus)

    assert 100 == num_ended == len(ended)


async def test_subscription_can_be_stopped_twice_and_by_its_own_handler(
    bus: Bus, subject: str
) -> None:
    stopped = asyncio.Event()

    async def handle(message: Incoming) -> None:
        await subscription.stop()
        await subscription.stop()
        stopped.set()

    subscription = await bus.subscribe(subject, handle)
    await bus.publish(subject, b"")
    async with asyncio.timeout(1):
        await stopped.wait()


async def test_other_members_take_over_when_one_stops(connect: Connect, subject: str) -> None:
    one, other = await connect(), await connect()
    gone, stays = Mailbox(), Mailbox()
    leaving = await one.subscribe(subject, gone, queue="group")
    await other.subscribe(subject, stays, queue="group")
    await settle(one, other)
    await leaving.stop()
    for _ in range(20):
        await other.publish(subject, b"")
    await stays.wait_for(20)

    assert not gone.messages


async def test_closing_lets_running_handlers_end(connect: Connect, subject: str) -> None:
    one, other = await connect(), await connect()
    ended: list[bytes] = []
    started = asyncio.Event()

    async def handle(message: Incoming) -> None:
        started.set()
        await asyncio.sleep(0.1)
        ended.append(message.payload)

    await one.subscribe(subject, handle)
    await settle(one)
    await other.publish(subject, b"1")
    async with asyncio.timeout(2):
        await started.wait()
    await one.close()

    assert [b"1"] == ended


async def test_closing_is_bounded(bus: Bus, subject: str) -> None:
    started = asyncio.Event()

    async def handle(message: Incoming) -> None:
        started.set()
        await asyncio.sleep(20)

    await bus.subscribe(subject, handle)
    await bus.publish(subject, b"")
    await started.wait()
    async with asyncio.timeout(2):
        await bus.close(timeout_s=0.2)


async def test_registry_holds_what_was_put_last(connect: Connect) -> None:
    one, other = (await connect()).registry(), (await connect()).registry()
    key = secrets.token_hex(6)
    await one.put(key, b"first")
    await one.put(key, b"second")
    there = await other.entries()
    await other.delete(key)
    gone = await one.entries()
    await one.put(key, b"third")
    back = await one.entries()
    await one.delete(key)

    assert (b"second", None, b"third") == (there.get(key), gone.get(key), back.get(key))


async def test_registry_takes_the_delete_of_what_is_not_there(bus: Bus) -> None:
    await bus.registry().delete("nobody")

    assert "nobody" not in await bus.registry().entries()
