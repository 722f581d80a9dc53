"""A prefill and a decode worker without a scheduler: each job as a test sends it."""

import asyncio
from typing import Any

from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.endpoint import call
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import DECODE, PREFILL
from slipstream.shared.ids import RequestId, new_request_id
from slipstream.shared.messages.codec import ClientAnswer, decoder_of
from slipstream.shared.messages.generate import Cancel, Cancelled
from slipstream.shared.messages.jobs import DecodeJob, PrefillJob, ReplyTarget
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.telemetry.context import SpanContext

from .service_stack import WAIT_S, ServiceStack, is_idle, until

SPAN = SpanContext("1" * 32, "1" * 16)
PROMPT = list(b"Ride behind me and rest a little while you can. " * 3)


class Hosted:
    """Two workers, and one inbox for their answers."""

    def __init__(self, stack: ServiceStack, bus: NatsBus) -> None:
        self.stack = stack
        self.bus = bus
        self.inbox = bus.new_inbox()
        self.answers: list[Any] = []

    async def take(self, incoming: Incoming) -> None:
        """Take a client's answer."""
        self.answers.append(decoder_of(ClientAnswer).decode(incoming.payload))

    @property
    def prefill(self) -> Any:
        """The prefill worker."""
        return self.stack.one("prefill")

    @property
    def decode(self) -> Any:
        """The decode worker."""
        return self.stack.one("decode")

    def job(self, request_id: RequestId | None = None, **fields: Any) -> dict[str, Any]:
        """Return the fields of a job."""
        return {
            "request_id": request_id or new_request_id(),
            "attempt": 1,
            "model": "fake",
            "prompt_token_ids": PackedInts(PROMPT),
            "sampling": SamplingParameters(seed=1, temperature=0.0, max_tokens=8, ignore_eos=True),
            "reply": ReplyTarget(self.inbox),
            "root_span": SPAN,
            "attempt_span": SPAN,
            **fields,
        }

    def prefill_job(self, request_id: RequestId | None = None, **fields: Any) -> PrefillJob:
        """Return a job for the prefill worker."""
        target = {
            "decode_worker_id": self.decode.worker_id,
            "decode_host_id": self.stack.one("kv").host.host_id,
        }
        return PrefillJob(**(self.job(request_id) | target | fields))

    def decode_job(self, request_id: RequestId | None = None, **fields: Any) -> DecodeJob:
        """Return a job that the decode worker prefills itself."""
        return DecodeJob(**self.job(request_id, **fields))

    async def send(self, message: PrefillJob | DecodeJob) -> Any:
        """Send a job to its worker."""
        is_prefill = isinstance(message, PrefillJob)
        topic, worker = (PREFILL, self.prefill) if is_prefill else (DECODE, self.decode)
        return await call(self.bus, topic, message, timeout_s=5, worker_id=worker.worker_id)

    async def cancel(self, role: str, request_id: RequestId, reason: str = "client") -> Cancelled:
        """Cancel an attempt at a worker."""
        topic, worker = (PREFILL, self.prefill) if role == "prefill" else (DECODE, self.decode)
        message = Cancel(request_id=request_id, attempt=1, reason=reason)
        answer = await call(self.bus, topic, message, timeout_s=5, worker_id=worker.worker_id)
        assert isinstance(answer, Cancelled)
        return answer

    def ending(self, role: str, request_id: RequestId) -> Any:
        """Return how a worker says that an attempt ended, or None."""
        jobs = self.prefill._parts.jobs if role == "prefill" else self.decode._parts.jobs
        found = jobs._book._ended.get((request_id, 1))
        return found[0] if found is not None else None

    async def until_ended(self, role: str, request_id: RequestId) -> Any:
        """Return how a worker says that an attempt ended."""
        await until(lambda: self.ending(role, request_id))
        return self.ending(role, request_id)

    async def until_free(self) -> None:
        """Return when nobody holds a block: all are free, or cached for who comes next."""
        async with asyncio.timeout(WAIT_S):
            while not is_idle(audit := await self.stack.audit()):
                await asyncio.sleep(0.01)

        assert [] == audit.problems
