"""What every process counts without a library, and how it is told."""

from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.prometheus_meter import PrometheusMeter
from slipstream.shared.telemetry.tally_meter import BothMeters, TallyMeter, number_at


def test_numbers_lie_under_the_values_of_their_labels() -> None:
    meter = TallyMeter()
    placements = meter.counter(metric_names.PLACEMENTS)
    placements.add("local", "short_prompt")
    placements.add("local", "short_prompt", amount=2)
    placements.add("local", "cached_prompt")
    meter.counter(metric_names.PREEMPTIONS).add()
    meter.watch(metric_names.REQUESTS, lambda: {("decode", "running"): 4})

    assert {
        "slipstream_placements_total": {"local": {"short_prompt": 3, "cached_prompt": 1}},
        "slipstream_preemptions_total": 1,
        "slipstream_requests": {"decode": {"running": 4}},
    } == meter.read()


def test_what_was_never_counted_is_told_as_zero() -> None:
    meter = TallyMeter()
    meter.counter(metric_names.PREEMPTIONS)
    meter.counter(metric_names.REFUSED)

    assert {"slipstream_preemptions_total": 0, "slipstream_refused_total": {}} == meter.read()


def test_of_a_distribution_number_and_sum_are_kept() -> None:
    meter = TallyMeter()
    times = meter.histogram(metric_names.TIME_TO_FIRST_TOKEN)
    times.record(0.5)
    times.record(0.25)

    assert {"slipstream_time_to_first_token_seconds": {"count": 2, "sum": 0.75}} == meter.read()


def test_gauges_are_read_when_somebody_asks() -> None:
    meter, leases = TallyMeter(), [1]
    meter.watch(metric_names.KV_LEASES, lambda: {(): len(leases)})
    leases.append(2)

    assert {"slipstream_kv_leases": 2} == meter.read()


def test_two_meters_are_told_the_same() -> None:
    tallies, prometheus = TallyMeter(), PrometheusMeter()
    both = BothMeters(tallies, prometheus)
    both.counter(metric_names.REFUSED).add("overloaded", amount=2)
    both.histogram(metric_names.BATCH_SIZE).record(3)
    both.watch(metric_names.KV_LEASES, lambda: {(): 7})

    read = prometheus.registry.get_sample_value
    assert 2 == read("slipstream_refused_total", {"reason": "overloaded"})
    assert (1, 7) == (read("slipstream_batch_size_count"), read("slipstream_kv_leases"))
    assert {
        "slipstream_refused_total": {"overloaded": 2},
        "slipstream_batch_size": {"count": 1, "sum": 3},
        "slipstream_kv_leases": 7,
    } == tallies.read()


def test_a_number_that_is_not_there_is_zero() -> None:
    tallies = {"a": {"b": 2}, "c": 3}

    assert [2, 3, 0, 0, 0] == [
        *(number_at(tallies, "a", "b"), number_at(tallies, "c")),
        *(number_at(tallies, "a"), number_at(tallies, "c", "d"), number_at(tallies, "e", "f")),
    ]
