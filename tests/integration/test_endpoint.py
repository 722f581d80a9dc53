"""Typed calls over both buses: whatever happens to a handler, its caller gets an answer."""

import secrets
from typing import Any

import pytest

from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.endpoint import RemoteError, call, call_again, call_kv, serve
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.subjects import CANCEL, KV, Topic
from slipstream.shared.errors import InvalidRequestError, ProtocolError
from slipstream.shared.ids import HostId, RequestId
from slipstream.shared.messages.codec import decoder_of, encode
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Cancel, Cancelled
from slipstream.shared.messages.kv import Match, Matched
from slipstream.shared.messages.packed import PackedInts


async def serve_cancel(bus: Bus, handler: Any) -> RequestId:
    request_id = RequestId(secrets.token_hex(6))
    await serve(bus, CANCEL.subject(request_id=request_id), CANCEL, handler)
    await bus.flush()
    return request_id


async def test_an_answer_above_the_limit_is_told_from_none(bus: Bus) -> None:
    """Silence would be taken for the death of who answers."""

    async def handle(_message: Cancel, _incoming: Incoming) -> Failed:
        return Failed(code="conflict", message="x" * bus.max_payload)

    request_id = await serve_cancel(bus, handle)
    with pytest.raises(RemoteError, match="above the limit") as raised:
        await call(bus, CANCEL, Cancel(request_id), timeout_s=5, request_id=request_id)

    assert "message_too_large" == raised.value.code


async def test_a_try_during_an_outage_does_not_count() -> None:
    """The other side has not been asked."""
    bus = MemoryBus()
    request_id = RequestId("r")
    num_heard = 0

    async def handle(message: Cancel, _incoming: Incoming) -> Cancelled | None:
        nonlocal num_heard
        num_heard += 1
        if num_heard < 3:
            bus.connection.lost()
            bus.connection.back()
            return None
        return Cancelled(message.request_id, "decoding")

    await serve(bus, CANCEL.subject(request_id=request_id), CANCEL, handle)
    answer = await call_again(
        bus,
        CANCEL,
        lambda: Cancel(request_id),
        timeout_s=0.05,
        num_tries=1,
        max_wait_s=30,
        request_id=request_id,
    )

    assert (3, Cancelled(request_id, "decoding")) == (num_heard, answer)


async def test_call_returns_the_typed_answer(bus: Bus) -> None:
    async def handle(message: Cancel, incoming: Incoming) -> Cancelled:
        return Cancelled(message.request_id, "decoding")

    request_id = await serve_cancel(bus, handle)
    answer = await call(bus, CANCEL, Cancel(request_id), timeout_s=2, request_id=request_id)

    assert Cancelled(request_id, "decoding") == answer


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (InvalidRequestError("top_p", "too high"), "invalid_request", "top_p: too high"),
        (RuntimeError("a secret"), "internal_error", "RuntimeError"),
    ],
)
async def test_error_of_a_handler_is_answered(
    bus: Bus, error: Exception, code: str, text: str
) -> None:
    async def handle(message: Cancel, incoming: Incoming) -> Cancelled:
        raise error

    request_id = await serve_cancel(bus, handle)
    with pytest.raises(RemoteError) as caught:
        await call(bus, CANCEL, Cancel(request_id), timeout_s=2, request_id=request_id)

    assert (code, text) == (caught.value.code, str(caught.value))


@pytest.mark.parametrize("payload", [b"", b"\x00", b"{}", b'{"type": "from_v2"}', b"\x80"])
async def test_bad_message_is_answered(bus: Bus, payload: bytes) -> None:
    async def handle(message: Cancel, incoming: Incoming) -> Cancelled:
        raise AssertionError("never called")

    request_id = await serve_cancel(bus, handle)
    answer = await bus.request(CANCEL.subject(request_id=request_id), payload, timeout_s=2)

    assert "protocol_error" == decoder_of(Failed).decode(answer.payload).code


async def test_answer_has_the_encoding_of_the_question(bus: Bus) -> None:
    async def handle(message: Cancel, incoming: Incoming) -> Cancelled:
        return Cancelled(message.request_id)

    request_id = await serve_cancel(bus, handle)
    subject = CANCEL.subject(request_id=request_id)
    answers = [
        await bus.request(subject, encode(Cancel(request_id), encoding), timeout_s=2)
        for encoding in ("json", "msgpack")
    ]

    assert [b"{", b"\x82"] == [answer.payload[:1] for answer in answers]


async def test_verbs_of_the_manager_go_to_the_host(bus: Bus) -> None:
    host_id = HostId(secrets.token_hex(6))

    async def handle(message: Any, incoming: Incoming) -> Matched:
        return Matched(len(message.token_ids))

    await serve(bus, KV.subject(host_id=host_id, verb="match"), KV, handle)
    answer = await call_kv(bus, host_id, Match(PackedInts([1, 2, 3]), "layout"))

    assert Matched(3) == answer


async def test_answer_of_another_kind_is_a_protocol_error(bus: Bus, subject: str) -> None:
    async def answer(message: Incoming) -> None:
        await bus.publish(message.reply, encode(Matched(1)))

    topic = Topic(subject, Cancel, Cancelled | Failed)
    await bus.subscribe(subject, answer)
    with pytest.raises(ProtocolError, match="expected Cancelled, Failed"):
        await call(bus, topic, Cancel(RequestId("r1")), timeout_s=2)
