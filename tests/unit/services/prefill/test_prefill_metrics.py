"""The prefill worker shows which of its jobs have blocks."""

from types import SimpleNamespace

from slipstream.services.prefill.metrics import PrefillMetrics
from slipstream.shared.model.step_counters import StepCounters
from slipstream.shared.telemetry.prometheus_meter import PrometheusMeter


def test_jobs_are_shown_by_whether_they_have_blocks() -> None:
    meter = PrometheusMeter()
    jobs, engine = SimpleNamespace(num_running=5, num_leased=2), SimpleNamespace(busy_s=0.5)
    engine.runner = SimpleNamespace(counters=StepCounters(weight_bytes=7, kv_bytes=2))
    PrefillMetrics(meter).watch(jobs, engine)  # type: ignore[arg-type] # stand-ins
    read = meter.registry.get_sample_value

    assert (3, 2) == tuple(
        read("slipstream_requests", {"role": "prefill", "state": state})
        for state in ("waiting", "prefilling")
    )
    assert 7 == read("slipstream_engine_bytes_total", {"what": "weights"})
    assert 0.5 == read("slipstream_engine_busy_seconds_total")
