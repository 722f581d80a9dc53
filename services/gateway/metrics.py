"""What the gateway counts."""

from collections.abc import Callable

from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.meter import Meter


class GatewayMetrics:
    """Of HTTP; what services count is theirs."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._requests = meter.counter(metric_names.HTTP_REQUESTS)
        self._disconnects = meter.counter(metric_names.HTTP_DISCONNECTS)
        self._cut_off = meter.counter(metric_names.HTTP_CUT_OFF)
        self._first_frames = meter.histogram(metric_names.HTTP_FIRST_FRAME)
        self._first_bytes = meter.histogram(metric_names.HTTP_TIME_TO_FIRST_BYTE)

    def watch(self, num_running: Callable[[], int], num_dropped: Callable[[], int]) -> None:
        """Show numbers of their owners."""
        self._meter.watch(metric_names.HTTP_RUNNING, lambda: {(): num_running()})
        self._meter.watch(metric_names.HTTP_DROPPED_FRAMES, lambda: {(): num_dropped()})

    def answered(self, path: str, status: int) -> None:
        """Count an answer by its endpoint and status."""
        self._requests.add(path, str(status))

    def disconnected(self) -> None:
        """Count a client that went before its answer's end."""
        self._disconnects.add()

    def cut_off(self) -> None:
        """Count a client that took nothing for too long."""
        self._cut_off.add()

    def first_byte(self, seconds: float) -> None:
        """Note how long the first byte of a stream took from the request's arrival."""
        self._first_bytes.record(seconds)

    def first_frame(self, seconds: float) -> None:
        """Note how long the first byte of a stream took from its first frame's arrival."""
        self._first_frames.record(seconds)
