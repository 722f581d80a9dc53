"""What `slipstream bench serve` prints and writes."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

from slipstream.services.cli.serve_bench import Cell
from slipstream.services.cli.serve_bench_plan import MODES, ServePlan, describe
from slipstream.services.cli.serve_bench_stacks import Mode
from slipstream.services.cli.serve_bench_tuning import Try
from slipstream.services.cli.stack import StackSettings
from slipstream.shared.config import DecodeConfig
from slipstream.shared.measure.estimate import Estimate, describe_machine
from slipstream.shared.measure.load.crossover import Crossing, crossings
from slipstream.shared.measure.load.samples import Sample
from slipstream.shared.measure.load.summary import Percentiles, Summary, Targets, summarize

# Beyond it the load generator takes a noticeable part of what it measures.
_MAX_CLIENT_CPU_SHARE = 0.25
# A request that leaves so late has not come when it should have.
_MAX_SEND_LAG_MS = 20.0

Row = dict[str, Any]  # Any: text, numbers, and rows within rows


@dataclass
class Measured:
    """All that a report says something of."""

    plan: ServePlan
    modes: Sequence[Mode]
    cells: Sequence[Cell]
    tries: Sequence[Try]
    highest_rate: float | None

    @cached_property
    def rows(self) -> list[Row]:
        """One for each mode and level, made once: intervals take a while."""
        return [_row(cell, self.plan.targets) for cell in self.cells]


def load_of(row: Row) -> float:
    """Return how much was asked for: streams, or requests a second."""
    load: float = row["streams"] if row["rate"] is None else row["rate"]
    return load


def load_name(row: Row) -> str:
    """Return the same for people."""
    return f"{row['streams']} streams" if row["rate"] is None else f"{row['rate']:.3g}/s"


def _row(cell: Cell, targets: Targets) -> Row:
    stack = summarize(cell.runs, targets)
    row: Row = {
        "mode": cell.mode,
        "streams": cell.level.streams,
        "rate": cell.level.rate,
        **_figures(stack),
        "client_cpu_share": stack.client_cpu_share,
        "send_lag_ms": _percentiles(stack.send_lag_ms),
        "in_process_throughput_tok_s": None,
        "throughput_ratio": None,
        "throughput_ratio_interval": None,
        "in_process_ttft_ms": None,
        "in_process_tpot_ms": None,
        "overhead_ttft_ms": None,
    }
    if cell.engine_runs:
        row |= _beside_engine(stack, summarize(cell.engine_runs, targets))
    row["by_class"] = _parts(cell, targets, lambda each: each.request.latency_class)
    row["by_tenant"] = _parts(cell, targets, lambda each: each.request.tenant)
    return row


def _figures(summary: Summary) -> Row:
    rate = Estimate.of("throughput", summary.throughputs_tok_s)
    return {
        "num_requests": summary.num_requests,
        "num_failed": summary.num_failed,
        "num_unfinished": summary.num_unfinished,
        "first_error": summary.first_error,
        "throughput_tok_s": summary.throughput_tok_s,
        "throughput_tok_s_interval": [rate.low, rate.high],
        "goodput": summary.goodput,
        "attainment": summary.attainment,
        "ttft_ms": _percentiles(summary.ttft_ms),
        "tpot_ms": _percentiles(summary.tpot_ms),
        "itl_ms": _percentiles(summary.itl_ms),
        "queue_ms": _percentiles(summary.queue_ms),
        "num_prompt_tokens": summary.num_prompt_tokens,
        "num_cached_tokens": summary.num_cached_tokens,
    }


def _beside_engine(stack: Summary, engine: Summary) -> Row:
    row: Row = {
        "in_process_throughput_tok_s": engine.throughput_tok_s,
        "in_process_ttft_ms": _percentiles(engine.ttft_ms),
        "in_process_tpot_ms": _percentiles(engine.tpot_ms),
    }
    if all(engine.throughputs_tok_s):
        pairs = (stack.throughputs_tok_s, engine.throughputs_tok_s)
        ratio = Estimate.of_ratio("throughput", *pairs)
        row["throughput_ratio"] = ratio.median
        row["throughput_ratio_interval"] = [ratio.low, ratio.high]
    if stack.ttft_ms is not None and engine.ttft_ms is not None:
        row["overhead_ttft_ms"] = stack.ttft_ms.p50 - engine.ttft_ms.p50
    return row


def _parts(cell: Cell, targets: Targets, key: Callable[[Sample], str | None]) -> Row:
    """Return figures of each class or tenant; none where requests have none."""
    names = {key(sample) for run in cell.runs for sample in run.samples} - {None}
    return {
        name: _figures(summarize(cell.runs, targets, partial(_is_of, key, name)))
        for name in sorted(map(str, names))
    }


def _is_of(key: Callable[[Sample], str | None], name: str, sample: Sample) -> bool:
    return key(sample) == name


def _percentiles(found: Percentiles | None) -> Row | None:
    return None if found is None else asdict(found)


def crossings_of(measured: Measured) -> list[Crossing]:
    """Return where the modes of a comparison change places; none unless there are two."""
    if len(measured.modes) != len(MODES):
        return []
    first, second = (
        [row for row in measured.rows if row["mode"] == mode.name] for mode in measured.modes
    )
    levels = [load_of(row) for row in first]
    found = []
    for name, value_of, is_more_better in COMPARED:
        values = [[value_of(row) for row in of_mode] for of_mode in (first, second)]
        found.append(crossings(name, levels, *values, is_more_better=is_more_better))
    return found


def _nested(figure: str, percentile: str) -> Callable[[Row], float | None]:
    return lambda row: None if row[figure] is None else row[figure][percentile]


# What modes are compared by: name, value, and whether more of it is better.
COMPARED: Sequence[tuple[str, Callable[[Row], float | None], bool]] = (
    ("goodput", lambda row: row["goodput"], True),
    ("throughput_tok_s", lambda row: row["throughput_tok_s"], True),
    ("ttft_ms p50", _nested("ttft_ms", "p50"), False),
    ("ttft_ms p95", _nested("ttft_ms", "p95"), False),
    ("tpot_ms p50", _nested("tpot_ms", "p50"), False),
    ("tpot_ms p95", _nested("tpot_ms", "p95"), False),
    ("itl_ms p99", _nested("itl_ms", "p99"), False),
)


def as_json(measured: Measured, settings: StackSettings) -> Row:
    """Return what `--json` writes."""
    targets = measured.plan.targets
    return {
        "machine": describe_machine(),
        "settings": {**describe(measured.plan), **_stack_settings(measured, settings)},
        "targets": {
            "default": asdict(targets.default),
            **{name: asdict(each) for name, each in targets.by_class.items()},
        },
        "highest_rate": measured.highest_rate,
        "tuning": [_try_row(each) for each in measured.tries],
        "rows": measured.rows,
        "crossover": [
            each.as_row(*(mode.name for mode in measured.modes)) for each in crossings_of(measured)
        ],
    }


def _stack_settings(measured: Measured, settings: StackSettings) -> Row:
    if measured.plan.options.url is not None:
        return {"model": settings.model}
    return {
        "model": settings.model,
        "engine": settings.engine,
        "format": settings.weight_format,
        "kv_format": settings.kv_format,
        "kv_memory": settings.kv_memory,
        "modes": {mode.name: _mode_settings(mode) for mode in measured.modes},
    }


def _mode_settings(mode: Mode) -> Row:
    config = mode.config(DecodeConfig, "decode")
    return {
        "route": mode.settings.route,
        "num_prefill": mode.settings.num_prefill,
        "num_decode": mode.settings.num_decode,
        "threads": config.num_threads or "all cores",
        "seats": config.num_seats,
        "token_budget": config.token_budget,
        "prompt_step_ms": config.prompt_step_ms,
        "step_stretch": config.step_stretch,
    }


def _try_row(each: Try) -> Row:
    return {
        "mode": each.mode.name,
        "token_budget": each.token_budget,
        "prompt_step_ms": each.prompt_step_ms,
        "streams": each.level.streams,
        "rate": each.level.rate,
        "is_taken": each.is_taken,
        **_figures(each.summary),
    }


def warnings_of(rows: Sequence[Row]) -> list[str]:
    """Return why some figures say less than they seem to."""
    found = []
    for row in rows:
        where = f"{row['mode']}, {load_name(row)}"
        if row["client_cpu_share"] > _MAX_CLIENT_CPU_SHARE:
            found.append(
                f"{where}: the load generator took {row['client_cpu_share']:.0%} of a core, more "
                f"than {_MAX_CLIENT_CPU_SHARE:.0%}: run it on another machine, with --url"
            )
        lag = row["send_lag_ms"]
        if lag is not None and lag["p99"] > _MAX_SEND_LAG_MS:
            found.append(
                f"{where}: requests left up to {lag['p99']:.0f} ms late (p99); their waits count "
                "from when they were due"
            )
        if row["num_failed"]:
            found.append(
                f"{where}: {row['num_failed']} of {row['num_requests']} requests failed "
                f"({row['first_error'] or 'an answer was too short'})"
            )
        if row["num_cached_tokens"] and row["in_process_throughput_tok_s"] is not None:
            found.append(
                f"{where}: {row['num_cached_tokens']} of {row['num_prompt_tokens']} prompt tokens "
                "were cached; the engine alone has no prefix cache and computed all of them"
            )
        if row["num_unfinished"]:
            found.append(
                f"{where}: {row['num_unfinished']} of {row['num_requests']} requests were not "
                "answered before --drain ended; percentiles leave out what did not come"
            )
    return found
