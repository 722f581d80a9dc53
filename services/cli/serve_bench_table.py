"""The report of `slipstream bench serve` for people."""

from collections.abc import Sequence

from slipstream.services.cli.serve_bench_plan import ServePlan
from slipstream.services.cli.serve_bench_report import (
    Measured,
    Row,
    crossings_of,
    load_name,
    warnings_of,
)
from slipstream.services.cli.text_table import right_aligned
from slipstream.shared.measure.load.crossover import Crossing

_LOAD = ("mode", "load")
_FIGURES = (
    *("requests", "tok/s", "goodput/s", "kept", "TTFT p50", "p95", "p99"),
    *("TPOT p50", "p95", "p99", "ITL p50", "p95", "p99", "queue p50", "p95"),
)
_ENGINE = ("tok/s", "engine alone", "ratio", "95 % interval", "TTFT p50 ms", "alone", "overhead")
_SAMPLED = ("ttft_ms", "tpot_ms", "itl_ms")


def as_text(measured: Measured) -> str:
    """Return all tables; times are milliseconds."""
    rows = measured.rows
    parts = [_introduction(measured)]
    if measured.tries:
        parts.append(_tuning_table(measured))
    parts.append(right_aligned((*_LOAD, *_FIGURES), [(*_load(row), *_cells(row)) for row in rows]))
    for key, title in (("by_class", "class"), ("by_tenant", "tenant")):
        lines = [
            (*_load(row), name, *_cells(figures))
            for row in rows
            for name, figures in row[key].items()
            if len(row[key]) > 1
        ]
        if lines:
            parts.append(right_aligned((*_LOAD, title, *_FIGURES), lines))
    beside = [row for row in rows if row["in_process_throughput_tok_s"] is not None]
    if beside:
        parts.append(
            right_aligned((*_LOAD, *_ENGINE), [(*_load(row), *_beside(row)) for row in beside])
        )
    names = [mode.name for mode in measured.modes]
    parts += ["\n".join(_sentence(each, names) for each in crossings_of(measured))]
    parts.append(_client_line(rows))
    parts += [f"Note: {line}" for line in warnings_of(rows)]
    return "\n\n".join(part for part in parts if part)


def _introduction(measured: Measured) -> str:
    plan = measured.plan
    lines = [f"Times in milliseconds. Good is {_targets(plan)}."]
    factor = plan.length_factor
    if factor is not None:
        lines.append(
            f"Lengths of the trace times {factor:.4g}: 99 of 100 requests have at most "
            f"{plan.max_num_tokens} tokens, the others are cut to that."
        )
    if measured.highest_rate is not None:
        lines.append(
            f"With all seats taken {measured.highest_rate:.3g} requests/s ended: loads are parts "
            "of that."
        )
    return "\n".join(lines)


def _targets(plan: ServePlan) -> str:
    """Say what counts as good, for the classes that come."""
    targets = plan.targets
    pairs = [
        (f"{name}: ", targets.by_class.get(name, targets.default)) for name in plan.maker.classes
    ] or [("", targets.default)]
    return "; ".join(
        f"{name}first token within {each.ttft_ms:g}, then one every {each.tpot_ms:g}"
        for name, each in pairs
    )


def _tuning_table(measured: Measured) -> str:
    columns = ("mode", "token budget", "prompt step", "load", "goodput/s", "kept", "tok/s", "taken")
    lines = [
        (
            each.mode.name,
            str(each.token_budget),
            str(each.prompt_step_ms),
            each.level.name,
            f"{each.summary.goodput:.3f}",
            _share(each.summary.attainment),
            f"{each.summary.throughput_tok_s:.1f}",
            "yes" if each.is_taken else "",
        )
        for each in measured.tries
    ]
    return right_aligned(columns, lines)


def _load(row: Row) -> tuple[str, str]:
    return row["mode"], load_name(row)


def _cells(row: Row) -> tuple[str, ...]:
    times = [_time(row[name], each) for name in _SAMPLED for each in ("p50", "p95", "p99")]
    queue = [_time(row["queue_ms"], each) for each in ("p50", "p95")]
    return (
        str(row["num_requests"]),
        f"{row['throughput_tok_s']:.1f}",
        f"{row['goodput']:.3f}",
        _share(row["attainment"]),
        *times,
        *queue,
    )


def _beside(row: Row) -> tuple[str, ...]:
    low, high = row["throughput_ratio_interval"] or (None, None)
    overhead = row["overhead_ttft_ms"]
    return (
        f"{row['throughput_tok_s']:.1f}",
        f"{row['in_process_throughput_tok_s']:.1f}",
        "" if low is None else f"{row['throughput_ratio']:.3f}",
        "" if low is None else f"{low:.3f} to {high:.3f}",
        _time(row["ttft_ms"], "p50"),
        _time(row["in_process_ttft_ms"], "p50"),
        "" if overhead is None else f"{overhead:.1f}",
    )


def _sentence(crossing: Crossing, names: Sequence[str]) -> str:
    """Say who is better at which loads, and where that changes."""
    said = []
    for idx, name in enumerate(names):
        won = [
            f"{load:.3g}"
            for load, winner in zip(crossing.loads, crossing.winners, strict=True)
            if winner == idx
        ]
        if won:
            said.append(f"{name} better at {', '.join(won)}")
    crosses = (
        f"; they cross at {', '.join(f'{at:.3g}' for at in crossing.at)}" if crossing.at else ""
    )
    return f"{crossing.name}: {'; '.join(said) or 'no difference'}{crosses}"


def _client_line(rows: Sequence[Row]) -> str:
    most = max(row["client_cpu_share"] for row in rows)
    return f"The load generator took at most {most:.1%} of a core."


def _time(found: Row | None, name: str) -> str:
    return "" if found is None else f"{found[name]:.1f}"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
