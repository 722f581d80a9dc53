"""Pictures of simulations: distributions, what happened over time, and maps of plans."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.services.cli.bench_plot import check_plotting
from slipstream.shared.simulation.results import Served, percentiles
from slipstream.shared.simulation.run import Outcome

_INCHES = (11.0, 4.5)
_DPI = 110
# Where a distribution is drawn: evenly, and closely at its tail.
_PERCENTS = [*range(99), *(99 + part / 20 for part in range(20))]


def plot_run(outcome: Outcome, groups: Mapping[str, Served], path: Path) -> None:
    """Draw a run: first tokens, and requests over time."""
    figure = _figure()
    of_ttft, over_time = figure.subplots(1, 2)
    for name, served in groups.items():
        _draw_tail(of_ttft, served.ttft_s, name)
    _label_tail(of_ttft)
    _draw_time(over_time, outcome)
    figure.savefig(path, dpi=_DPI)


def plot_policies(outcomes: Mapping[str, Outcome], path: Path) -> None:
    """Draw what each policy does to first tokens: of all, and of whoever asks least."""
    figure = _figure()
    of_all, of_few = figure.subplots(1, 2)
    for policy, outcome in outcomes.items():
        _draw_tail(of_all, outcome.ledger.all.ttft_s, policy)
        by_tenant = outcome.ledger.by_tenant or outcome.ledger.by_class
        name, served = min(by_tenant.items(), key=lambda item: item[1].num_requests)
        _draw_tail(of_few, served.ttft_s, f"{policy}: {name}")
    _label_tail(of_all, "all")
    _label_tail(of_few, "the tenant or class that asks least")
    figure.savefig(path, dpi=_DPI)


def plot_plan(tried: Sequence[tuple[int, int, float, bool]], path: Path) -> None:
    """Draw what was tried: prefill, decode, the part within the targets, and whether it is kept."""
    figure = _figure()
    axes: Any = figure.subplots()  # Any: matplotlib is an extra
    drawn = axes.scatter(
        [each[1] for each in tried],
        [each[0] for each in tried],
        c=[100 * each[2] for each in tried],
        marker="s",
        s=200,
        vmin=0,
        vmax=100,
        cmap="viridis",
    )
    kept = [each for each in tried if each[3]]
    axes.scatter([each[1] for each in kept], [each[0] for each in kept], marker="*", c="red", s=90)
    axes.set_xlabel("decode workers")
    axes.set_ylabel("prefill workers")
    axes.set_title("a star keeps the targets")
    figure.colorbar(drawn, label="requests within the targets, %")
    figure.savefig(path, dpi=_DPI)


def _figure() -> Any:  # Any: as above
    check_plotting()
    from matplotlib.figure import Figure  # noqa: PLC0415 - it is an extra, and slow to load

    return Figure(figsize=_INCHES, layout="constrained")


def _draw_tail(axes: Any, values: Sequence[float], name: str) -> None:  # Any: as above
    if not values:
        return
    found = percentiles(values, _PERCENTS)
    axes.plot([1000 * each for each in found], [100 - each for each in _PERCENTS], label=name)


def _label_tail(axes: Any, title: str = "") -> None:  # Any: as above
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("time to first token, ms")
    axes.set_ylabel("requests that wait longer, %")
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()


def _draw_time(axes: Any, outcome: Outcome) -> None:  # Any: as above
    ledger = outcome.ledger
    last = max([0, *ledger.came, *ledger.left_queue, *ledger.answered])
    times = [bucket * ledger.bucket_s for bucket in range(last + 1)]
    waiting: list[int] = []
    num = 0
    for bucket in range(last + 1):
        num += ledger.came[bucket] - ledger.left_queue[bucket]
        waiting.append(num)
    axes.plot(times, [ledger.came[each] for each in range(last + 1)], label="asked, a second")
    axes.plot(
        times, [ledger.answered[each] for each in range(last + 1)], label="answered, a second"
    )
    axes.plot(times, waiting, label="in the queue")
    axes.set_xlabel("simulated seconds")
    axes.set_ylabel("requests")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
