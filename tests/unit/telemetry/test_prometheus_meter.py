"""What is counted is what Prometheus reads, under the names that stand in one place."""

from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.metric_names import METRICS, Metric
from slipstream.shared.telemetry.process_metrics import ProcessMetrics
from slipstream.shared.telemetry.prometheus_meter import PrometheusMeter
from slipstream.shared.telemetry.tally_meter import TallyMeter

_UNITS_IN_NAMES = ("seconds", "bytes")


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_named_as_prometheus_wants_it(metric: Metric) -> None:
    """The base unit at the end, and `_total` behind it on counters alone."""
    name = metric.name.removesuffix("_total")

    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert (metric.unit in _UNITS_IN_NAMES) == name.endswith(_UNITS_IN_NAMES)
    assert (metric.kind == "histogram") == bool(metric.buckets)
    assert sorted(set(metric.buckets)) == list(metric.buckets)
    assert metric.help.endswith(".")
    assert "\n" not in metric.help


def test_every_metric_stands_in_the_operators_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")

    assert [] == [
        metric.name for metric in METRICS if f"| `{metric.name}` | {metric.kind}" not in text
    ]


def test_no_two_metrics_share_a_name() -> None:
    assert len(METRICS) == len({metric.name for metric in METRICS})
    assert len(METRICS) > 20


def test_times_are_told_apart_from_half_a_millisecond_on_at_least() -> None:
    for metric in METRICS:
        if metric.kind == "histogram" and metric.unit == "seconds":
            is_short = metric is metric_names.HTTP_FIRST_FRAME
            assert (0.0001 if is_short else 0.0005) == metric.buckets[0]
            assert metric.buckets[-1] >= (1 if is_short else 60)


def test_what_is_counted_is_read_by_the_librarys_parser() -> None:
    meter = PrometheusMeter()
    meter.counter(metric_names.PREEMPTIONS).add()
    refused = meter.counter(metric_names.REFUSED)
    refused.add('a "quoted"\nreason')
    refused.add("other", amount=0)
    meter.histogram(metric_names.BATCH_SIZE).record(5)
    meter.watch(metric_names.KV_BLOCKS, lambda: {("free",): 7, ("leased",): 0})
    meter.watch(metric_names.WORK_TIME, lambda: {(): 1.5})
    families = {
        family.name: family for family in text_string_to_metric_families(meter.render().decode())
    }
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for name, family in families.items()
        if name.startswith("slipstream_")
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }

    assert {
        ("slipstream_preemptions_total",): 1,
        ("slipstream_refused_total", 'a "quoted"\nreason'): 1,
        ("slipstream_refused_total", "other"): 0,
        ("slipstream_batch_size_count",): 1,
        ("slipstream_batch_size_sum",): 5,
        ("slipstream_kv_blocks", "free"): 7,
        ("slipstream_kv_blocks", "leased"): 0,
        ("slipstream_work_seconds_total",): 1.5,
    } == found
    assert "counter" == families["slipstream_work_seconds"].type
    assert "gauge" == families["slipstream_kv_blocks"].type
    buckets = {
        sample.labels["le"]: sample.value
        for sample in families["slipstream_batch_size"].samples
        if sample.name.endswith("_bucket")
    }
    assert (0, 1) == (buckets["4.0"], buckets["6.0"])


def test_each_process_has_a_registry_of_its_own() -> None:
    first, second = PrometheusMeter(), PrometheusMeter()
    first.counter(metric_names.PREEMPTIONS).add()
    second.counter(metric_names.PREEMPTIONS)

    assert 1 == first.registry.get_sample_value("slipstream_preemptions_total")
    assert 0 == second.registry.get_sample_value("slipstream_preemptions_total")
    assert not [each for each in REGISTRY.collect() if each.name.startswith("slipstream")]


async def test_a_process_shows_who_it_is_and_its_memory() -> None:
    metrics = await ProcessMetrics.open("kv", "kv-1", "127.0.0.1", 0)  # type: ignore[arg-type] # a plain string
    assert metrics.endpoint is not None
    text = metrics.endpoint._render().decode()
    await metrics.close()

    assert (metrics.url or "").startswith("http://127.0.0.1:")
    assert 'slipstream_info{role="kv"' in text
    for name in ("process_resident_memory_bytes", "process_swap_bytes"):
        assert f"\n{name} " in text


async def test_without_a_port_there_is_no_endpoint() -> None:
    metrics = await ProcessMetrics.open("kv", "kv-1", "127.0.0.1", None)  # type: ignore[arg-type] # as above
    await metrics.close()

    assert (None, TallyMeter) == (metrics.url, type(metrics.meter))
