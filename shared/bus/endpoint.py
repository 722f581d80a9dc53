"""Typed calls and handlers over the bus: encode, decode, and an answer in every case."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from slipstream.shared.bus.bus import Bus, Incoming, Subscription
from slipstream.shared.bus.endpoints import Endpoint
from slipstream.shared.bus.subjects import KV, KV_VERBS, Topic
from slipstream.shared.errors import (
    DeadlineExceededError,
    MessageTooLargeError,
    ProtocolError,
    SlipstreamError,
)
from slipstream.shared.ids import HostId
from slipstream.shared.messages.codec import decoder_of, encode, encoding_of
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.kv import KvRequest

log = structlog.get_logger()

# Any: messages of a topic are a union that the checker can't name; `match` narrows them.
TypedHandler = Callable[[Any, Incoming], Awaitable[Any]]
# Answers by itself; returns what it has refused a message with.
RawHandler = Callable[[Incoming], Awaitable[Failed | None]]


class RemoteError(SlipstreamError):
    """The other side answered `Failed`."""

    def __init__(self, failed: Failed) -> None:
        self.failed = failed
        self.code = failed.code
        super().__init__(failed.message)


async def call(
    bus: Bus,
    topic: Topic,
    message: object,
    *,
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    **tokens: str,
) -> Any:  # Any: the topic's reply union; `match` narrows it
    """Send and return the typed answer. Raises RemoteError for `Failed`, the rest as `Bus`."""
    answer = await bus.request(
        topic.subject(**tokens), encode(message), timeout_s=timeout_s, headers=headers
    )
    return _unwrap(topic.reply, answer)


async def call_again(
    bus: Bus,
    topic: Topic,
    message: Callable[[], object],
    *,
    timeout_s: float,
    num_tries: int,
    max_wait_s: float,
    headers: Mapping[str, str] | None = None,
    **tokens: str,
) -> Any:  # Any: as in `call`
    """
    Send what is answered the same each time until there is an answer; as `call`.

    A try during which NATS went away counts for nothing: it says nothing of the other side. It is
    waited for up to `max_wait_s` in all. `message` returns what to send now.
    """
    give_up_at = time.monotonic() + max_wait_s
    while True:
        num_returns = bus.connection.num_returns
        try:
            return await call(bus, topic, message(), timeout_s=timeout_s, headers=headers, **tokens)
        except DeadlineExceededError:
            left_s = give_up_at - time.monotonic()
            is_cut_off = not bus.connection.is_up or bus.connection.num_returns != num_returns
            if is_cut_off and left_s > 0:
                await bus.connection.wait_up(left_s)
                continue
            num_tries -= 1
            if num_tries <= 0:
                raise


async def call_kv(
    bus: Bus,
    host_id: HostId,
    message: KvRequest,
    *,
    timeout_s: float = 2.0,
    headers: Mapping[str, str] | None = None,
    max_wait_s: float = 0.0,
) -> Any:  # Any: the verb's reply union; `match` narrows it
    """Ask a host's KV manager; as `call`. NATS itself is waited for up to `max_wait_s`."""
    if max_wait_s:
        await bus.connection.wait_up(max_wait_s)
    verb, reply = KV_VERBS[type(message)]
    answer = await bus.request(
        KV.subject(host_id=host_id, verb=verb),
        encode(message),
        timeout_s=timeout_s,
        headers=headers,
    )
    return _unwrap(reply, answer)


def _unwrap(reply: Any, answer: Incoming) -> Any:  # Any: as in `call`
    message = decoder_of(reply).decode(answer.payload)
    if isinstance(message, Failed):
        raise RemoteError(message)
    return message


async def serve(
    bus: Bus,
    subject: str,
    topic: Topic,
    handler: TypedHandler,
    *,
    queue: str = "",
    name: str = "",
) -> Subscription:
    """
    Answer every message on a subject with what the handler returns, or with `Failed`.

    The answer is encoded as the message was. A handler that returns None sends nothing. Of what
    has a name, or a topic with answers, discovery tells.
    """
    decoder = decoder_of(topic.message)
    endpoint = Endpoint(name or topic.name, subject, queue)
    if name or topic.reply is not None:
        bus.endpoints.append(endpoint)

    async def answer(incoming: Incoming) -> None:
        with endpoint.timed():
            reply = await _answer_of(decoder, handler, incoming)
        if isinstance(reply, Failed):
            endpoint.failed(reply.code)
        if reply is not None and incoming.reply:
            await _send(bus, incoming, reply)

    return await bus.subscribe(subject, answer, queue=queue)


async def _send(bus: Bus, incoming: Incoming, reply: object) -> None:
    """Answer, if need be that no message holds the answer: silence would be taken for a death."""
    encoding = encoding_of(incoming.payload)
    try:
        await bus.publish(incoming.reply, encode(reply, encoding))
    except MessageTooLargeError as error:
        log.warning("answer_too_large", subject=incoming.subject, error=str(error))
        failed = Failed(code=error.code, message=f"the answer: {error}", limit=error.limit)
        await bus.publish(incoming.reply, encode(failed, encoding))


async def listen(
    bus: Bus, subject: str, topic: Topic, handler: RawHandler, *, queue: str = ""
) -> Subscription:
    """Have every message on a subject handled as it came, and count it as `serve` does."""
    endpoint = Endpoint(topic.name, subject, queue)
    bus.endpoints.append(endpoint)

    async def handle(incoming: Incoming) -> None:
        with endpoint.timed():
            failed = await handler(incoming)
        if failed is not None:
            endpoint.failed(failed.code)

    return await bus.subscribe(subject, handle, queue=queue)


async def _answer_of(
    decoder: Any,  # Any: a decoder of the topic's union
    handler: TypedHandler,
    incoming: Incoming,
) -> Any:  # Any: the topic's reply union
    try:
        return await handler(decoder.decode(incoming.payload), incoming)
    except ProtocolError as error:
        log.warning("message_refused", subject=incoming.subject, error=str(error))
        return Failed(code=error.code, message=str(error))
    except SlipstreamError as error:
        return Failed(code=error.code, message=str(error))
    except Exception as error:
        # A client always gets an answer; the stack trace stays here.
        log.exception("handler_failed", subject=incoming.subject)
        return Failed(code="internal_error", message=type(error).__name__)
