"""How `slipstream top` looks: tables, bars and sparklines of one snapshot."""

from collections.abc import Sequence

from rich import box
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from slipstream.services.cli.top_snapshot import HostRow, Snapshot, Times, WorkerRow

_LEVELS = "▁▂▃▄▅▆▇█"
_NUM_SHOWN = 30  # intervals of a sparkline
_BAR_WIDTH = 40
_BLOCKS = {  # by state: its colour
    "leased": "green",
    "committed": "cyan",
    "granted": "yellow",
    "cached": "blue",
    "quarantined": "red",
    "free": "bright_black",
}
_STATES = {"ready": "green", "draining": "yellow", "silent": "red"}


def sparkline(values: Sequence[float | None], num_shown: int = _NUM_SHOWN) -> str:
    """Return the last values as bars; a blank where there is none."""
    shown = list(values)[-num_shown:]
    highest = max((value for value in shown if value is not None), default=0.0)
    return "".join(_level(value, highest) for value in shown)


def _level(value: float | None, highest: float) -> str:
    if value is None:
        return " "
    share = value / highest if highest > 0 else 0.0
    return _LEVELS[min(len(_LEVELS) - 1, int(share * len(_LEVELS)))]


def view(snapshot: Snapshot, where: str) -> RenderableType:
    """Return everything; `where` is the server that it comes from."""
    if not snapshot.services and not snapshot.workers:
        return Panel(f"nobody answers at {where} yet", title="slipstream top")
    return Group(
        _head(snapshot, where),
        Columns([_speed(snapshot), _queue(snapshot)]),
        _workers(snapshot.workers),
        *(_host(each) for each in snapshot.hosts),
    )


def _head(snapshot: Snapshot, where: str) -> Text:
    services = ", ".join(f"{number} {role}" for role, number in snapshot.services.items())
    return Text.assemble(("slipstream ", "bold"), f"{where}  ", (services, "dim"))


def _grid() -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    return table


def _speed(snapshot: Snapshot) -> Panel:
    table = _grid()
    tokens = snapshot.tokens_history
    table.add_row("tokens/s", f"{snapshot.tokens_per_s:,.1f}", Text(sparkline(tokens), "green"))
    for name, times in (("TTFT ms", snapshot.ttft_ms), ("TPOT ms", snapshot.tpot_ms)):
        table.add_row(name, _percentiles(times), Text(sparkline(times.history), "cyan"))
    table.add_row("drafts accepted", _share(snapshot.draft_acceptance))
    table.add_row("prompt cached", _share(snapshot.cache_hits))
    return Panel(table, title="speed", box=box.ROUNDED)


def _queue(snapshot: Snapshot) -> Panel:
    queue = snapshot.queue
    table = _grid()
    table.add_row("waiting", str(queue.num_waiting), f"the oldest {queue.oldest_s:.1f} s")
    table.add_row("prefilling", str(queue.num_prefilling))
    table.add_row("running", str(queue.num_running))
    table.add_row("submitted", str(queue.num_submitted))
    table.add_row("refused", str(queue.num_refused))
    return Panel(table, title="requests", box=box.ROUNDED)


def _workers(rows: Sequence[WorkerRow]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, expand=True)
    for name in ("worker", "role", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("seats", "held", "waiting", "prefilling", "running", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.worker_id,
            row.role,
            Text(row.state, _STATES.get(row.state, "")),
            *(f"{row.num_seats:,}", str(row.num_held)),
            *(str(row.num_waiting), str(row.num_prefilling), str(row.num_running)),
            f"{row.tokens_per_s:,.1f}" if row.role == "decode" else "",
        )
    return table


def _host(host: HostRow) -> Text:
    line = Text.assemble((f"KV of {host.host_id} ", "bold"), f"{host.num_blocks:,} blocks ")
    for state, width in _widths(host).items():
        line.append("█" * width, _BLOCKS.get(state, ""))
    for state, colour in _BLOCKS.items():
        number = host.blocks.get(state, 0)
        if number:
            line.append(f"  {state} ", colour)
            line.append(f"{number:,}")
    line.append(f"  +{host.stored_per_s:.1f} -{host.removed_per_s:.1f} cached/s", "dim")
    return line


def _widths(host: HostRow) -> dict[str, int]:
    """Return how much of the bar each state has: all but the free at least one character."""
    widths = {}
    for state in _BLOCKS:
        share = host.blocks.get(state, 0) / host.num_blocks if host.num_blocks else 0.0
        widths[state] = max(1, round(share * _BAR_WIDTH)) if share else 0
    widths["free"] = max(0, _BAR_WIDTH - sum(widths.values()) + widths["free"])
    return widths


def _percentiles(times: Times) -> str:
    if times.p50 is None or times.p95 is None:
        return "-"
    return f"{times.p50:,.1f} p50 {times.p95:,.1f} p95"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def line_of(snapshot: Snapshot) -> str:
    """Return a snapshot in one line, for logs."""
    queue = snapshot.queue
    parts = [
        f"{len(snapshot.workers)} workers",
        f"{queue.num_waiting} waiting",
        f"{queue.num_prefilling} prefilling",
        f"{queue.num_running} running",
        f"{snapshot.tokens_per_s:.1f} tokens/s",
        f"TTFT {_percentiles(snapshot.ttft_ms)} ms",
        f"TPOT {_percentiles(snapshot.tpot_ms)} ms",
        f"drafts {_share(snapshot.draft_acceptance)}",
        f"cached {_share(snapshot.cache_hits)}",
    ]
    return ", ".join(parts)
