"""A publisher of submissions, as anybody could write it, and who looks into the streams."""

import asyncio
import json
from typing import Any

from nats.js import JetStreamContext

from slipstream.shared.bus.durable import BODY_DIGEST
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.nats_durable import NatsDurable
from slipstream.shared.bus.nats_topology import CONSUMER
from slipstream.shared.bus.subjects import DEAD_STREAM, SUBMIT, SUBMIT_STREAM
from slipstream.shared.messages.codec import ClientAnswer, decoder_of
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion
from slipstream.shared.messages.reports import DeadLetter
from slipstream.shared.messages.submission import sequence_key

WAIT_S = 15.0


class Submitter:
    """One client of the durable entrance."""

    def __init__(self, bus: NatsBus) -> None:
        self.durable: NatsDurable = bus.durable()
        self.stream: JetStreamContext = bus.client.jetstream(timeout=2.0)

    async def submit(self, prompt: str = "Hello", **fields: Any) -> str:
        """Publish a request; return the key under which its ending will lie. Any: its fields."""
        body = {"prompt": prompt, "temperature": 0, **fields}
        return await self.submit_bytes(json.dumps(body).encode())

    async def submit_bytes(self, payload: bytes, subject: str = SUBMIT.subject()) -> str:
        """Publish bytes; return the key of their sequence number."""
        return sequence_key(await self.durable.publish(subject, payload))

    async def ending(self, key: str, timeout_s: float = WAIT_S) -> Completion | Failed:
        """Return the ending under a key as soon as it is there."""
        async with asyncio.timeout(timeout_s):
            while (stored := await self.durable.results.get(key)) is None:
                await asyncio.sleep(0.02)
        assert stored.headers[BODY_DIGEST]
        answer = decoder_of(ClientAnswer).decode(stored.value)
        assert isinstance(answer, Completion | Failed)
        return answer

    async def num_queued(self) -> int:
        """Return how many messages the stream of submissions holds."""
        return int((await self.stream.stream_info(SUBMIT_STREAM)).state.messages)

    async def num_taken(self) -> int:
        """Return how many of them are taken."""
        return int((await self.stream.consumer_info(SUBMIT_STREAM, CONSUMER)).num_ack_pending or 0)

    async def until_empty(self) -> None:
        """Return when every submission is acknowledged."""
        async with asyncio.timeout(WAIT_S):
            while await self.num_queued():
                await asyncio.sleep(0.02)

    async def dead_letters(self) -> list[DeadLetter]:
        """Return all dead letters."""
        state = (await self.stream.stream_info(DEAD_STREAM)).state
        if not state.messages:
            return []
        numbers = range(state.first_seq, state.last_seq + 1)
        found = [await self.stream.get_msg(DEAD_STREAM, seq=number) for number in numbers]
        return [decoder_of(DeadLetter).decode(each.data or b"") for each in found]
