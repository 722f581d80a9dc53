"""What `slipstream bench ablation` prints and writes."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from slipstream.services.cli.ablation import Pairs, Window
from slipstream.services.cli.ablation_layers import EVERYTHING_ON
from slipstream.services.cli.ablation_options import AblationOptions
from slipstream.services.cli.ablation_workload import Workload
from slipstream.services.cli.stack import StackSettings
from slipstream.services.cli.text_table import right_aligned
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.measure.estimate import Estimate, describe_machine
from slipstream.shared.measure.load.summary import Percentiles
from slipstream.shared.measure.loops import is_looping
from slipstream.shared.measure.pairs import MIN_NUM_PAIRS

Row = dict[str, Any]  # Any: text, numbers, and rows within rows

_COLUMNS = (
    *("left out", "instead", "tokens/s", "TTFT p50", "p95", "p99", "TPOT p50", "p95", "p99"),
    *("MB a token", "of everything on", "95 % interval", "the layer", "tokens"),
)
_UNKNOWN = "-"
_MEGABYTE = 1e6


class OtherTokensError(SlipstreamError):
    """A layer that must not change an answer did."""

    code = "other_tokens"


def rows_of(measured: Sequence[Pairs]) -> list[Row]:
    """Return a row of everything on, and one for each variant, in their order."""
    with_all = [window for pairs in measured for window in pairs.with_all]
    expected = with_all[0].token_ids
    reference = {
        "layer": EVERYTHING_ON,
        "without": "",
        **_figures(with_all, expected),
        "must_keep_tokens": True,
        "ratio": 1.0,
        "ratio_low": 1.0,
        "ratio_high": 1.0,
        "verdict": "",
    }
    return [reference, *(_row(pairs, expected) for pairs in measured)]


def _row(pairs: Pairs, expected: Sequence[Sequence[int]]) -> Row:
    ratio = Estimate.of_ratio(
        pairs.variant.name,
        [window.throughput for window in pairs.without],
        [window.throughput for window in pairs.with_all],
    )
    return {
        "layer": pairs.variant.name,
        "without": pairs.variant.without,
        **_figures(pairs.without, expected),
        "must_keep_tokens": pairs.variant.keeps_tokens,
        "ratio": ratio.median,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "verdict": verdict_of(ratio.low, ratio.high, len(pairs.without)),
    }


def verdict_of(low: float, high: float, num_rounds: int) -> str:
    """Say what a layer does, by the interval of the throughput without it."""
    if num_rounds < MIN_NUM_PAIRS:
        return "needs more rounds"
    if low > 1.0:
        return "loses"
    return "gains" if high < 1.0 else "makes no difference"


def _figures(windows: Sequence[Window], expected: Sequence[Sequence[int]]) -> Row:
    samples = [sample for window in windows for sample in window.samples]
    return {
        "throughput_tok_s": statistics.median(window.throughput for window in windows),
        "ttft_ms": _percentiles(sample.ttft_ms for sample in samples),
        "tpot_ms": _percentiles(sample.tpot_ms for sample in samples),
        "bytes_per_token": _bytes_per_token(windows),
        "tokens_equal": all(window.token_ids == list(expected) for window in windows),
        "throughputs_tok_s": [window.throughput for window in windows],
    }


def _percentiles(values: Iterable[float | None]) -> Row | None:
    found = Percentiles.of(value for value in values if value is not None)
    return None if found is None else {"p50": found.p50, "p95": found.p95, "p99": found.p99}


def _bytes_per_token(windows: Sequence[Window]) -> float | None:
    moved = [window.num_bytes for window in windows if window.num_bytes is not None]
    if len(moved) < len(windows):
        return None
    return sum(moved) / sum(window.num_tokens for window in windows)


def check_tokens(rows: Sequence[Row]) -> None:
    """Raise OtherTokensError for the rows whose tokens must be those of everything on."""
    changed = [row["layer"] for row in rows if row["must_keep_tokens"] and not row["tokens_equal"]]
    if changed:
        raise OtherTokensError(
            f"other tokens came without {', '.join(changed)} (or from one run of everything on to "
            "the next): the same tokens have to come on every path"
        )


def table(rows: Sequence[Row]) -> str:
    """Return the rows for people; times are milliseconds."""
    return right_aligned(_COLUMNS, [_cells(row) for row in rows])


def _cells(row: Row) -> tuple[str, ...]:
    is_reference = row["layer"] == EVERYTHING_ON
    num_bytes = row["bytes_per_token"]
    return (
        _UNKNOWN if is_reference else row["layer"],
        row["without"] or row["layer"],
        f"{row['throughput_tok_s']:.1f}",
        *_of(row["ttft_ms"], ".0f"),
        *_of(row["tpot_ms"], ".1f"),
        _UNKNOWN if num_bytes is None else f"{num_bytes / _MEGABYTE:.1f}",
        f"{row['ratio']:.3f}",
        _UNKNOWN if is_reference else f"{row['ratio_low']:.3f} to {row['ratio_high']:.3f}",
        row["verdict"] or _UNKNOWN,
        _tokens(row),
    )


def _of(percentiles: Row | None, form: str) -> list[str]:
    if percentiles is None:
        return [_UNKNOWN] * 3
    return [format(percentiles[name], form) for name in ("p50", "p95", "p99")]


def _tokens(row: Row) -> str:
    if row["tokens_equal"]:
        return "equal"
    return "WRONG" if row["must_keep_tokens"] else "other"


def num_looped(measured: Sequence[Pairs]) -> int:
    """Return how many answers of everything on go round in circles: drafts are at their best."""
    return sum(map(is_looping, measured[0].with_all[0].token_ids))


def as_json(
    measured: Sequence[Pairs],
    rows: Sequence[Row],
    workload: Workload,
    options: AblationOptions,
    settings: StackSettings,
) -> Row:
    """Return what `--json` writes."""
    return {
        "machine": describe_machine(),
        "settings": {
            "model": options.model,
            "format": settings.weight_format,
            "kv_format": settings.kv_format,
            "kv_memory": options.kv_memory,
            "threads": options.threads,
            "trace": None if options.trace is None else options.trace.name,
            "trace_length_factor": workload.length_factor,
            "context": options.context,
            "system_tokens": workload.num_system_tokens,
            "requests": len(workload.requests),
            "streams": workload.num_streams,
            "prompt_tokens": workload.num_prompt_tokens,
            "output_tokens": workload.num_output_tokens,
            "looped": num_looped(measured),
            "temperature": options.temperature,
            "seed": options.seed,
            "rounds": options.rounds,
        },
        "rows": list(rows),
    }
