"""Answers `slipstream trace` from what a supervisor has received of traces."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.services.cli.running_stack import RunningStack
from slipstream.services.cli.trace_settings import forwarding_endpoint, kept_at, may_keep
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import TRACES
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.traces import TraceFound, TraceRequest, TracesFound
from slipstream.shared.telemetry.otlp_json import to_otlp
from slipstream.shared.telemetry.trace_summary import request_id_of, summary_of

if TYPE_CHECKING:
    from slipstream.shared.telemetry.receiver import TraceReceiver

_MAX_NUM_LISTED = 100


@dataclass(frozen=True)
class KeptTraces:
    """What a supervisor does about traces; nothing where there is no receiver."""

    environment: Mapping[str, str]  # for its children
    receiver: "TraceReceiver | None" = None

    @contextlib.asynccontextmanager
    async def shown(self, stack: RunningStack) -> AsyncIterator[None]:
        """Answer questions for traces while a block runs."""
        if self.receiver is None:
            yield
            return
        bus = await NatsBus.connect(stack.nats_url, "slipstream-traces", stack.access)
        try:
            await TraceDesk(bus, self.receiver).start()
            yield
        finally:
            await bus.close()


@contextlib.contextmanager
def kept_traces(max_num_traces: int, environment: Mapping[str, str]) -> Iterator[KeptTraces]:
    """Receive the children's spans while a block runs, and pass them on to the user's collector."""
    if not max_num_traces or not may_keep(environment):
        yield KeptTraces(environment)
        return
    from slipstream.shared.telemetry.receiver import TraceReceiver  # noqa: PLC0415 - without it protobuf isn't loaded

    with TraceReceiver(
        forward_to=forwarding_endpoint(environment), max_num_traces=max_num_traces
    ) as receiver:
        yield KeptTraces(kept_at(receiver.traces_endpoint, environment), receiver)


class TraceDesk:
    """Serves the traces of one receiver."""

    def __init__(self, bus: Bus, receiver: "TraceReceiver") -> None:
        self._bus = bus
        self._receiver = receiver

    async def start(self) -> None:
        """Listen."""
        await serve(self._bus, TRACES.subject(), TRACES, self._answer)

    async def _answer(
        self, request: TraceRequest, _incoming: Incoming
    ) -> TraceFound | TracesFound | Failed:
        # Hundreds of spans are sorted and rewritten: not while the supervisor's loop waits.
        if not request.id:
            return await asyncio.to_thread(self._latest)
        return await asyncio.to_thread(self._find, request.id)

    def _latest(self) -> TracesFound:
        newest = self._receiver.trace_ids()[::-1][:_MAX_NUM_LISTED]
        found = ((trace_id, self._receiver.spans(trace_id)) for trace_id in newest)
        return TracesFound(
            traces=[summary_of(trace_id, spans) for trace_id, spans in found if spans]
        )

    def _find(self, wanted: str) -> TraceFound | Failed:
        # The newest first: it is the one that people ask for.
        for trace_id in reversed(self._receiver.trace_ids()):
            spans = self._receiver.spans(trace_id)
            if wanted in (trace_id, request_id_of(spans)):
                return TraceFound(trace_id=trace_id, otlp=to_otlp(spans))
        return Failed(
            code="not_found",
            field="id",
            message=f"no trace of {wanted!r} is kept; `slipstream trace` lists those that are",
        )
