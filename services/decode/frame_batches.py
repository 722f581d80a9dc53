"""Frames of one engine step that go to one gateway, sent as one message."""

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Iterator

import structlog

from slipstream.shared.bus.bus import HEADER_ROOM, Bus
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.messages.codec import encode_batch

log = structlog.get_logger()

_FRAME_ROOM = 64  # bytes around a frame in a batch: its box, tags and lengths
_PROBE_S = 1.0
_MAX_NUM_GATEWAYS = 256  # that are remembered: anybody may name an inbox as a gateway's

_Frames = list[tuple[str, bytes]]


class FrameBatches:
    """
    Collects frames until the loop has no more of this step, then sends a batch to each gateway.

    Once a second a batch carries a reply subject: the server then says when nobody listens there.
    """

    def __init__(self, bus: Bus, probe_prefix: str) -> None:
        self._bus = bus
        self._probe_prefix = probe_prefix
        self._waiting: dict[str, _Frames] = {}
        # Of gateways, those probed last at the end: their number, and when that was.
        self._probes: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._next_number = itertools.count()
        self._sending = asyncio.Lock()  # an ending that follows must not overtake a batch
        self._flush: asyncio.Task[None] | None = None

    def add(self, gateway: str, box: str, frame: bytes) -> None:
        """Have an encoded frame sent with all that are added before the loop comes to rest."""
        self._waiting.setdefault(gateway, []).append((box, frame))
        if self._flush is None:
            self._flush = asyncio.create_task(self._flush_all())

    async def flush(self) -> None:
        """Send what waits, and return when it has left."""
        async with self._sending:
            while self._waiting:
                gateway = next(iter(self._waiting))
                frames = self._waiting.pop(gateway)
                for part in _parts(frames, self._bus.max_payload - HEADER_ROOM):
                    await self._bus.publish(
                        gateway, encode_batch(part), reply=self._probe_of(gateway)
                    )

    def gateway_of(self, probe: str) -> str | None:
        """Return which gateway a probe went to, by the last token of its subject."""
        probes = self._probes.items()
        return next((gateway for gateway, (number, _) in probes if _name(number) == probe), None)

    async def _flush_all(self) -> None:
        # In the next turn of the loop: a step adds its frames in one.
        try:
            await self.flush()
        except SlipstreamError as error:
            # Readers notice the gap by index and resume.
            log.warning("publish_failed", error=str(error))
        finally:
            self._flush = None
            if self._waiting:
                self._flush = asyncio.create_task(self._flush_all())

    def _probe_of(self, gateway: str) -> str:
        now_s = time.monotonic()
        number, probed_s = self._probes.get(gateway, (None, float("-inf")))
        if now_s - probed_s < _PROBE_S:
            return ""
        if number is None:
            number = next(self._next_number)
        self._probes[gateway] = (number, now_s)
        self._probes.move_to_end(gateway)
        if len(self._probes) > _MAX_NUM_GATEWAYS:
            self._probes.popitem(last=False)
        return f"{self._probe_prefix}.{_name(number)}"


def _name(number: int) -> str:
    # No request's id has a capital letter.
    return f"G{number}"


def _parts(frames: _Frames, max_num_bytes: int) -> Iterator[_Frames]:
    """Yield frames in as few messages as hold them; what is too large alone is refused later."""
    part: _Frames = []
    num_bytes = 0
    for box, frame in frames:
        size = len(box) + len(frame) + _FRAME_ROOM
        if part and num_bytes + size > max_num_bytes:
            yield part
            part, num_bytes = [], 0
        part.append((box, frame))
        num_bytes += size
    if part:
        yield part
