"""Questions of planning: how many workers, and which policy."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from slipstream.services.cli.name_lists import parse_names
from slipstream.services.cli.simulate_report import aligned, number
from slipstream.services.cli.simulate_setup import Load
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.scheduling.queue import POLICIES, Policy
from slipstream.shared.simulation.cluster import ClusterSettings
from slipstream.shared.simulation.costs import Costs
from slipstream.shared.simulation.results import Targets, percentiles
from slipstream.shared.simulation.run import Outcome, Simulation

_PLAN = re.compile(r"prefill=(\d+)\.\.(\d+),decode=(\d+)\.\.(\d+)")
_MET = 95  # of a hundred requests are to be served within each target

Report = Callable[[str], None]


@dataclass(frozen=True)
class Question:
    """A cluster, what it costs, and what is asked of it."""

    cluster: ClusterSettings
    costs: Costs
    load: Load
    targets: Targets

    def answer(self) -> Outcome:
        """Simulate it."""
        return self.load.serve(Simulation(self.cluster, self.costs, self.targets))


@dataclass(frozen=True)
class Tried:
    """A pair of numbers of workers, and how it does."""

    num_prefill: int
    num_decode: int
    ttft_ms: float  # of 95 in a hundred
    tpot_ms: float
    refused_part: float
    good_part: float  # within the targets
    is_kept: bool


def parse_plan(text: str) -> list[tuple[int, int]]:
    """Return the pairs of `prefill=1..8,decode=1..16`, the fewest workers first."""
    found = _PLAN.fullmatch(text.replace(" ", ""))
    if found is None:
        raise ConfigurationError(f"--plan is {text!r}: write prefill=1..8,decode=1..16")
    first, last, low, high = (int(each) for each in found.groups())
    if not (first <= last and 1 <= low <= high):
        raise ConfigurationError(
            f"--plan is {text!r}: ranges grow, and there is at least one decode worker"
        )
    pairs = [(p, d) for p in range(first, last + 1) for d in range(low, high + 1)]
    return sorted(pairs, key=lambda pair: (sum(pair), pair))


def find_plan(question: Question, pairs: list[tuple[int, int]], report: Report) -> list[Tried]:
    """
    Try pairs with more and more workers until one keeps the targets, and all others of its number.

    Returned is the best first: kept targets, then the fewest workers, then the soonest tokens.
    """
    tried: list[Tried] = []
    fewest: int | None = None
    for num_prefill, num_decode in pairs:
        if fewest is not None and num_prefill + num_decode > fewest:
            break
        report(f"prefill {num_prefill}, decode {num_decode}")
        cluster = replace(question.cluster, num_prefill=num_prefill, num_decode=num_decode)
        found = _judge(replace(question, cluster=cluster))
        tried.append(found)
        if found.is_kept:
            fewest = num_prefill + num_decode
    return sorted(
        tried, key=lambda each: (not each.is_kept, -each.good_part, each.ttft_ms, each.tpot_ms)
    )


def _judge(question: Question) -> Tried:
    outcome = question.answer()
    ledger, targets = outcome.ledger, question.targets
    ttft_s = (percentiles(ledger.all.ttft_s, (_MET,)) or (0.0,))[0]
    tpot_s = (percentiles(ledger.all.tpot_s, (_MET,)) or (0.0,))[0]
    refused_part = ledger.all.num_refused / ledger.num_asked
    good_part = ledger.all.num_good / ledger.num_asked
    is_kept = refused_part <= 1 - _MET / 100
    if targets.ttft_s is None:
        is_kept = is_kept and good_part >= _MET / 100
    else:
        is_kept = is_kept and ttft_s <= targets.ttft_s
    if targets.tpot_s is not None:
        is_kept = is_kept and tpot_s <= targets.tpot_s
    return Tried(
        num_prefill=question.cluster.num_prefill,
        num_decode=question.cluster.num_decode,
        ttft_ms=1000 * ttft_s,
        tpot_ms=1000 * tpot_s,
        refused_part=refused_part,
        good_part=good_part,
        is_kept=is_kept,
    )


def plan_table(tried: list[Tried]) -> str:
    """Return the pairs for people, the best first."""
    head = ("prefill", "decode", "TTFT ms p95", "TPOT ms p95", "refused", "within targets", "kept")
    return aligned([head, *(_cells(each) for each in tried)])


def _cells(tried: Tried) -> tuple[str, ...]:
    return (
        str(tried.num_prefill),
        str(tried.num_decode),
        number(tried.ttft_ms),
        number(tried.tpot_ms),
        f"{tried.refused_part:.1%}",
        f"{tried.good_part:.1%}",
        "yes" if tried.is_kept else "no",
    )


def compare_policies(question: Question, text: str, report: Report) -> dict[str, Outcome]:
    """Simulate the same load under each policy. Raises ConfigurationError."""
    outcomes: dict[str, Outcome] = {}
    for name in parse_names(text, "--policies", POLICIES):
        report(f"policy {name}")
        cluster = replace(question.cluster, policy=cast("Policy", name))
        outcomes[name] = replace(question, cluster=cluster).answer()
    return outcomes
