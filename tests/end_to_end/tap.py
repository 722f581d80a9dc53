"""An OTLP receiver that isn't ours, in a thread of its own; ours behind it keeps the resources."""

import asyncio
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from oteltap import OtelTapHttpProtobufReceiver, OtelTapHttpProtobufReceiverSettings

from slipstream.shared.telemetry.receiver import TraceReceiver

_START_S = 10.0
_QUIET_S = 0.5  # ten times the export interval that the stacks of these tests are given


@dataclass(frozen=True)
class Span:
    """What arrived, as far as tests ask."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]  # Any: what OTLP holds


class Tap:
    """`oteltap` listens; what it passes on tells which service a span came from."""

    def __init__(self) -> None:
        self._receiver = TraceReceiver()
        self._spans: dict[str, list[Span]] = defaultdict(list)
        self._changed = threading.Condition()
        self._port = _free_port()
        self._thread = threading.Thread(target=asyncio.run, args=(self._listen(),))
        self._is_ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a stack exports here, soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }

    def __enter__(self) -> Self:
        self._receiver.start()
        self._thread.start()
        assert self._is_ready.wait(_START_S), "oteltap does not listen"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None, "set before it was ready"
        assert self._stop is not None, "as above"
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_S)
        self._receiver.stop()

    def settled(
        self, trace_id: str, is_whole: Callable[[list[Span]], bool], timeout_s: float = 15.0
    ) -> list[Span]:
        """Return a trace once it is whole and no more comes, or what there is of it."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while time.monotonic() < deadline_s:
                num_spans = len(self._spans[trace_id])
                is_enough = is_whole(self._spans[trace_id])
                self._changed.wait_for(
                    lambda known=num_spans: len(self._spans[trace_id]) > known, _QUIET_S
                )
                if is_enough and len(self._spans[trace_id]) == num_spans:
                    break
            return sorted(self._spans[trace_id], key=lambda span: span.start_ns)

    def services(self, trace_id: str) -> set[str]:
        """Return who added spans to a trace."""
        return {each.removeprefix("slipstream-") for each in self._receiver.services(trace_id)}

    def traces_with(self, name: str, value: str) -> set[str]:
        """Return the traces in which a span has an attribute of this value."""
        with self._changed:
            return {
                trace_id
                for trace_id, spans in self._spans.items()
                if any(span.attributes.get(name) == value for span in spans)
            }

    async def _listen(self) -> None:
        settings = OtelTapHttpProtobufReceiverSettings(
            http_port=self._port, reemit_traces_to_url=self._receiver.traces_endpoint
        )
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with OtelTapHttpProtobufReceiver(settings) as receiver:
            collecting = asyncio.create_task(self._collect(receiver))
            # Its subscription starts with the task's first turn.
            await asyncio.sleep(0)
            self._is_ready.set()
            await self._stop.wait()
        await collecting

    async def _collect(self, receiver: OtelTapHttpProtobufReceiver) -> None:
        async for span in receiver.stream_traces():
            taken = Span(
                name=span.name,
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex() or None,
                start_ns=span.start_time_unix_nano,
                end_ns=span.end_time_unix_nano,
                attributes={
                    each.key: getattr(each.value, each.value.WhichOneof("value") or "", None)
                    for each in span.attributes
                },
            )
            with self._changed:
                self._spans[taken.trace_id].append(taken)
                self._changed.notify_all()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
