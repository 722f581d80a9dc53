"""The decode worker counts steps, drafts, tokens and the endings that it sends."""

from types import SimpleNamespace

from slipstream.services.decode.batch import Part
from slipstream.services.decode.metrics import DecodeMetrics
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.errors import NonFiniteLogitsError
from slipstream.shared.messages.common import Timings, Usage
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.model.sampling import SampledToken
from slipstream.shared.telemetry.prometheus_meter import PrometheusMeter

from .decode_samples import make_sequence


class Counted:
    """Metrics and what was read of them."""

    def __init__(self) -> None:
        self.meter = PrometheusMeter()
        self.metrics = DecodeMetrics(self.meter)

    def read(self, name: str, **labels: str) -> float | None:
        return self.meter.registry.get_sample_value(f"slipstream_{name}", labels)


def part(num_drafts: int, num_sampled: int, error: Exception | None = None) -> Part:
    rows = SequenceRows([1], 0, 1, [1], 1)
    sampled = [SampledToken(1)] * num_sampled
    return Part(make_sequence([1]), rows, [1] * num_drafts, sampled, error=error)


def test_drafts_are_counted_as_far_as_the_target_looked_at_them() -> None:
    counted = Counted()
    # Four proposed and all taken; three, of which the second was wrong; none; a row that failed.
    bad = NonFiniteLogitsError("a row")
    counted.metrics.stepped([part(4, 5), part(3, 2), part(0, 1), part(2, 0, bad)])

    drafts = [
        counted.read("draft_tokens_total", outcome=outcome)
        for outcome in ("proposed", "tested", "accepted")
    ]
    assert [7, 6, 5] == drafts
    assert (1, 4) == (counted.read("batch_size_count"), counted.read("batch_size_sum"))
    assert 1 == counted.read("nonfinite_rows_total")


def test_what_never_happened_is_zero_from_the_start() -> None:
    counted = Counted()

    for reason in ("stop", "length", "abort"):
        assert 0 == counted.read("finished_total", reason=reason)
    for outcome in ("proposed", "tested", "accepted"):
        assert 0 == counted.read("draft_tokens_total", outcome=outcome)


def test_tokens_times_and_endings_are_counted_as_the_answer_tells_them() -> None:
    counted = Counted()
    metrics = counted.metrics
    usage = Usage(num_prompt_tokens=40, num_output_tokens=1, num_cached_tokens=32)
    metrics.began(usage, Timings(ttft_ms=20.0))
    metrics.emitted(1)
    metrics.emitted(3)
    metrics.finished("stop", Timings(ttft_ms=20.0, tpot_ms=4.0))
    metrics.finished("length", Timings(ttft_ms=20.0))  # one token alone: no time between two
    metrics.failed("worker_draining")
    metrics.preempted()

    assert (40, 32, 4) == tuple(
        counted.read(f"{kind}_tokens_total") for kind in ("prompt", "cached", "output")
    )
    assert (1, 0.02) == (
        counted.read("time_to_first_token_seconds_count"),
        counted.read("time_to_first_token_seconds_sum"),
    )
    assert (1, 0.004) == (
        counted.read("time_per_output_token_seconds_count"),
        counted.read("time_per_output_token_seconds_sum"),
    )
    assert 1 == counted.read("finished_total", reason="stop")
    assert 1 == counted.read("finished_total", reason="length")
    assert 1 == counted.read("failed_total", code="worker_draining")
    assert 1 == counted.read("preemptions_total")


def test_sequences_are_shown_by_what_they_wait_for() -> None:
    counted = Counted()
    waiting, prefilling, running, over = (make_sequence([1, 2]) for _ in range(4))
    waiting.lease_id = None
    running.num_computed_tokens = 1
    over.lease_id, over.cancel_reason = None, "client"  # its blocks are on their way back
    held: list[DecodeSequence] = [waiting, prefilling, running, over]
    engine = SimpleNamespace(busy_s=1.0, runner=SimpleNamespace(counters=None))
    counted.metrics.watch(lambda: held, engine)  # type: ignore[arg-type] # a stand-in

    def shown() -> list[float | None]:
        states = ("waiting", "prefilling", "running")
        return [counted.read("requests", role="decode", state=state) for state in states]

    assert [1, 1, 2] == shown()
    held.clear()
    assert [0, 0, 0] == shown()
