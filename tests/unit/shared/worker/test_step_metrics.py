"""How much of the time there was work, and how much of that the engine computed."""

from types import SimpleNamespace

from slipstream.shared.errors import NonFiniteLogitsError
from slipstream.shared.telemetry.prometheus_meter import PrometheusMeter
from slipstream.shared.worker.step_metrics import StepMetrics, WorkClock


def test_only_time_with_work_counts_up_to_now() -> None:
    now = [100.0]
    clock = WorkClock(lambda: now[0])
    seen = []
    for action, moment in (
        (clock.stop, 101),
        (clock.start, 102),
        (clock.start, 105),  # more work, no second start
        (clock.stop, 107),
        (clock.stop, 109),
        (clock.start, 110),
    ):
        now[0] = moment
        action()
        seen.append(clock.seconds)
    now[0] = 113

    assert [0, 0, 3, 5, 5, 5] == seen
    assert 8 == clock.seconds


def test_steps_are_counted_by_size_and_only_bad_numbers_as_bad_rows() -> None:
    meter = PrometheusMeter()
    metrics = StepMetrics(meter)
    metrics.stepped(3)
    metrics.stepped(1)
    for error in (None, NonFiniteLogitsError("row"), RuntimeError("other")):
        metrics.row_failed(error)
    metrics.watch(SimpleNamespace(busy_s=0.25, runner=SimpleNamespace(counters=None)))  # type: ignore[arg-type] # a stand-in
    read = meter.registry.get_sample_value

    assert (2, 4) == (read("slipstream_batch_size_count"), read("slipstream_batch_size_sum"))
    assert 1 == read("slipstream_batch_size_bucket", {"le": "2.0"})
    assert 1 == read("slipstream_nonfinite_rows_total")
    assert (0.25, 0) == (
        read("slipstream_engine_busy_seconds_total"),
        read("slipstream_work_seconds_total"),
    )
