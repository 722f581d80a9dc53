"""What `slipstream simulate` prints and writes."""

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.shared.simulation.results import PERCENTS, Figures, Served
from slipstream.shared.simulation.run import Outcome

Row = dict[str, Any]  # Any: text and numbers

_HEAD = (
    *("", "answered", "refused", "TTFT ms p50", "p95", "p99", "TPOT ms p50", "p95", "p99"),
    *("queue ms p95", "req/s", "tok/s", "goodput"),
)


def groups_of(outcome: Outcome) -> dict[str, Served]:
    """Return all requests, then those of each class and tenant where there are several."""
    ledger = outcome.ledger
    groups = {"all": ledger.all}
    for of_kind in (ledger.by_class, ledger.by_tenant):
        if len(of_kind) > 1:
            groups |= dict(sorted(of_kind.items()))
    return groups


def rows_of(outcome: Outcome) -> list[Row]:
    """Return a row for each group."""
    seconds = outcome.ledger.seconds
    return [_row(name, Figures.of(served, seconds)) for name, served in groups_of(outcome).items()]


def _row(name: str, figures: Figures) -> Row:
    row: Row = {
        "group": name,
        "num_requests": figures.num_requests,
        "num_refused": figures.num_refused,
    }
    for what in ("ttft", "tpot", "queue"):
        values = getattr(figures, f"{what}_s")
        row |= {
            f"{what}_ms_p{percent}": 1000 * value
            for percent, value in zip(PERCENTS, values, strict=False)
        }
    return row | {
        "requests_per_s": figures.requests_per_s,
        "tokens_per_s": figures.tokens_per_s,
        "goodput_per_s": figures.goodput_per_s,
    }


def table(rows: Sequence[Row], title: str = "") -> str:
    """Return rows for people."""
    lines = [(title, *_HEAD[1:]), *(_cells(row) for row in rows)]
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return lines whose columns stand below each other: names left, numbers right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row["group"],
        f"{row['num_requests']:,}",
        f"{row['num_refused']:,}",
        *(number(row.get(f"ttft_ms_p{percent}")) for percent in PERCENTS),
        *(number(row.get(f"tpot_ms_p{percent}")) for percent in PERCENTS),
        number(row.get("queue_ms_p95")),
        number(row["requests_per_s"]),
        number(row["tokens_per_s"]),
        number(row["goodput_per_s"]),
    )


def number(value: float | None) -> str:
    """Return three digits of a number; a dash for none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def summary(outcome: Outcome, took_s: float) -> str:
    """Return what the table doesn't say."""
    ledger = outcome.ledger
    busy = f"{outcome.prefill_busy:.0%} (prefill) and {outcome.decode_busy:.0%} (decode)"
    reasons = ", ".join(f"{name} {count:,}" for name, count in ledger.reasons.most_common())
    lines = [
        f"{ledger.num_asked:,} requests in {ledger.seconds:,.1f} simulated seconds",
        f"workers computed {busy} of the time",
        f"routes: {reasons}",
        f"{outcome.num_events:,} events in {took_s:,.1f} s",
    ]
    if ledger.refusals:
        reasons = ", ".join(f"{name} {count:,}" for name, count in ledger.refusals.most_common())
        lines.append(f"refused: {reasons}")
    return "\n".join(lines)


def as_json(outcome: Outcome, settings: Mapping[str, Any], took_s: float) -> Row:
    """Return what `--json` writes. Any: as in `Row`."""
    return {
        "settings": dict(settings),
        "rows": rows_of(outcome),
        "refusals": dict(outcome.ledger.refusals),
        "route_reasons": dict(outcome.ledger.reasons),
        "simulated_s": outcome.ledger.seconds,
        "prefill_busy": outcome.prefill_busy,
        "decode_busy": outcome.decode_busy,
        "num_events": outcome.num_events,
        "took_s": took_s,
    }
