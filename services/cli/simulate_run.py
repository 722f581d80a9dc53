"""What `slipstream simulate` does with its options."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import typer

from slipstream.services.cli import simulate_plot, simulate_report
from slipstream.services.cli.bench_plot import check_plotting
from slipstream.services.cli.console import progress
from slipstream.services.cli.simulate_options import (
    ClusterOptions,
    CostOptions,
    LoadOptions,
    PlanOptions,
    ResultOptions,
    ValidateOptions,
)
from slipstream.services.cli.simulate_plan import (
    Question,
    compare_policies,
    find_plan,
    parse_plan,
    plan_table,
)
from slipstream.services.cli.simulate_setup import (
    cluster_of,
    costs_of,
    load_of,
    targets_of,
)
from slipstream.shared.errors import ConfigurationError


def run_simulation(
    cluster: ClusterOptions,
    load: LoadOptions,
    costs: CostOptions,
    plan: PlanOptions,
    validate: ValidateOptions,
    results: ResultOptions,
) -> None:
    """Simulate, plan, compare or validate. Raises ConfigurationError, TraceError, FitError."""
    if results.plot_file is not None:
        check_plotting()
    if sum([bool(plan.plan), bool(plan.policies), validate.validate]) > 1:
        raise ConfigurationError("--plan, --policies and --validate exclude each other")
    if validate.validate:
        from slipstream.services.cli.simulate_validate import (  # noqa: PLC0415 - for stacks only
            run_validation,
        )

        run_validation(cluster, load, costs, validate, results)
        return
    asked, known = load_of(load), costs_of(costs)
    settings = cluster_of(cluster, known, mean_context=asked.mix.lengths.mean_context())
    question = Question(settings, known, asked, targets_of(plan))
    options = {
        name: _plain(dataclasses.asdict(group))
        for name, group in (("cluster", cluster), ("load", load), ("plan", plan))
    } | {"costs": dataclasses.asdict(known)}
    if plan.plan:
        _plan(question, plan.plan, options, results)
    elif plan.policies:
        _policies(question, plan.policies, options, results)
    else:
        _run(question, options, results)


def _run(question: Question, options: dict[str, Any], results: ResultOptions) -> None:
    # Any: values of options
    began_s = time.perf_counter()
    outcome = question.answer()
    took_s = time.perf_counter() - began_s
    typer.echo(simulate_report.table(simulate_report.rows_of(outcome)))
    typer.echo(f"\n{simulate_report.summary(outcome, took_s)}")
    _write(results.json_file, simulate_report.as_json(outcome, options, took_s))
    if results.plot_file is not None:
        simulate_plot.plot_run(outcome, simulate_report.groups_of(outcome), results.plot_file)


def _policies(
    question: Question, text: str, options: dict[str, Any], results: ResultOptions
) -> None:
    # Any: as above
    outcomes = compare_policies(question, text, report=progress)
    for policy, outcome in outcomes.items():
        typer.echo(simulate_report.table(simulate_report.rows_of(outcome), policy) + "\n")
    rows = {policy: simulate_report.rows_of(each) for policy, each in outcomes.items()}
    _write(results.json_file, {"settings": options, "policies": rows})
    if results.plot_file is not None:
        simulate_plot.plot_policies(outcomes, results.plot_file)


def _plan(question: Question, text: str, options: dict[str, Any], results: ResultOptions) -> None:
    # Any: as above
    tried = find_plan(question, parse_plan(text), report=progress)
    typer.echo(plan_table(tried))
    best = next((each for each in tried if each.is_kept), None)
    if best is None:
        typer.echo("\nnone keeps the targets: allow more workers, or ask for less")
    else:
        typer.echo(
            f"\n--prefill {best.num_prefill} --decode {best.num_decode} is the fewest workers that "
            "keep the targets"
        )
    rows = [dataclasses.asdict(each) for each in tried]
    _write(results.json_file, {"settings": options, "tried": rows})
    if results.plot_file is not None:
        points = [
            (each.num_prefill, each.num_decode, each.good_part, each.is_kept) for each in tried
        ]
        simulate_plot.plot_plan(points, results.plot_file)


def _write(path: Path | None, values: Any) -> None:  # Any: JSON
    if path is not None:
        path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _plain(values: dict[str, Any]) -> dict[str, Any]:  # Any: values of options
    return {name: str(each) if isinstance(each, Path) else each for name, each in values.items()}
