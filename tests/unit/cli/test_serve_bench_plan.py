"""What the options of `slipstream bench serve` ask for, and which of them can't go together."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.services.cli.serve_bench_options import ServeBenchOptions
from slipstream.services.cli.serve_bench_plan import Level, make_plan
from slipstream.services.cli.serve_bench_values import parse_shares, parse_targets
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.measure.load.summary import Target
from slipstream.shared.scheduling.classes import CLASSES

_OPTIONS = ServeBenchOptions(seconds=10.0, warmup=2.0)
_TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02}.0,300,100\n" for second in range(60)
)


def _plan(**options: Any) -> Any:  # Any: options of every type
    return make_plan(replace(_OPTIONS, **options), 50_000, 2048)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(_TRACE)
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"streams": "8", "rate": "1"}, "--streams .* --rate .*one"),
        ({"rate": "0"}, "--rate is '0': every number is above 0"),
        ({"rate": "-1,2"}, "--rate is '-1,2': every number is above 0"),
        ({"rate": "fast"}, "--rate is 'fast': write for example"),
        ({"rate": "nan"}, "--rate is 'nan'"),
        ({"streams": "0"}, "--streams is '0': every number is at least 1"),
        ({"load": "inf"}, "--load is 'inf'"),
        ({"prompt": 2000, "output": 500}, "3750 tokens.*2048: lower --prompt, --output"),
        ({"context": 512}, "--context scales the lengths of a --trace"),
        ({"compare": "aggregated,split"}, "--compare 'split' is none of aggregated"),
        ({"compare": "aggregated"}, "--compare 'aggregated': name each of"),
        ({"json_file": Path("nowhere/x.json")}, "--json nowhere.*no directory nowhere"),
        ({"compare": "aggregated", "url": "nats://x"}, "--compare .* --url"),
        ({"budgets": "0"}, "--budgets is '0'"),
        ({"targets": "100"}, "--targets '100': '100' is no pair"),
        ({"targets": "0/5"}, "above 0"),
        ({"classes": "batch:x"}, "--classes 'batch:x' has no number"),
        ({"classes": "urgent"}, "--classes 'urgent' is no latency class; they are interactive"),
        ({"targets": "urgent=1/2"}, "--targets 'urgent' is no latency class"),
        ({"tenants": "a:0"}, "--tenants 'a:0': .*share above 0"),
        ({"tenants": ":1"}, "--tenants ':1': a name"),
        ({"trace": Path("no.csv")}, "no.csv: No such file"),
    ],
)
def test_what_can_not_work_is_refused_with_the_remedy(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SlipstreamError, match=message):
        _plan(**options)


def test_a_trace_longer_than_the_context_and_one_without_times_are_refused(
    trace: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.csv"
    bare.write_text("ContextTokens,GeneratedTokens\n5,6\n")

    with pytest.raises(SlipstreamError, match=r"4096 tokens.*lower --context to 2048"):
        _plan(trace=trace, context=4096)
    with pytest.raises(SlipstreamError, match=r"bare\.csv does not say when.*--streams"):
        _plan(trace=bare, rate="1")
    assert [Level(streams=4)] == _plan(trace=bare, streams="4").levels
    with pytest.raises(SlipstreamError, match="--arrivals bursts and --trace"):
        _plan(trace=trace, pattern="bursts")


def test_loads_are_levels_as_they_are_asked_for() -> None:
    assert [Level(streams=32)] == _plan().levels
    assert [Level(streams=1), Level(streams=8)] == _plan(streams="1,8").levels
    assert [Level(rate=0.5), Level(rate=2.0)] == _plan(rate="0.5,2").levels


def test_a_trace_without_a_rate_is_scaled_to_what_the_stack_can_do(trace: Path) -> None:
    plan = _plan(trace=trace, load="0.5,1.5")

    assert [] == plan.levels
    assert [Level(rate=5.0), Level(rate=15.0)] == plan.levels_at(10.0)


def test_a_trace_gives_lengths_scaled_to_the_context_and_times_scaled_to_the_rate(
    trace: Path,
) -> None:
    plan = _plan(trace=trace, context=200, rate="2")
    load = plan.load(Level(rate=2.0), 0)
    due = load.arrivals().due(load.end_s)

    assert 0.5 == plan.length_factor
    assert 24 == len(due)
    assert [0.0, 0.5, 1.0] == [pytest.approx(each.at_s) for each in due[:3]]
    request = load.request(0)
    assert (150, 50) == (len(request.token_ids), request.num_output_tokens)


@pytest.mark.parametrize("pattern", ["poisson", "bursts", "even"])
def test_every_mode_of_a_round_meets_the_same_load(pattern: str) -> None:
    plan = _plan(rate="5", pattern=pattern)
    one, same, next_round = (
        plan.load(Level(rate=5.0), idx).arrivals().due(12.0) for idx in (0, 0, 1)
    )

    assert one == same
    assert 20 < len(one) < 120
    assert pattern == "even" or one != next_round


def test_streams_are_there_before_the_window_begins() -> None:
    load = _plan(streams="7").load(Level(streams=7), 0)

    assert 1 == len(load.arrivals().due(0.0))
    assert 7 == len(load.arrivals().due(1.0))
    assert (2.0, 12.0) == (load.warmup_s, load.end_s)


def test_targets_are_for_all_or_for_a_class() -> None:
    targets = parse_targets("1000/100, batch=30000/inf")

    assert Target(1000, 100) == targets.default
    assert {"batch": Target(30_000, float("inf"))} == targets.by_class


def test_shares_are_1_unless_they_are_given() -> None:
    assert {"a": 1.0, "b": 2.5} == parse_shares("a, b:2.5", "--tenants")
    assert {} == parse_shares(None, "--tenants")


def test_what_a_class_is_promised_is_its_target_unless_another_is_given() -> None:
    targets = parse_targets(None)

    assert targets.default == targets.by_class["standard"]
    for name, each in CLASSES.items():
        assert Target(each.ttft_target_s * 1000, 100.0) == targets.by_class[name]
