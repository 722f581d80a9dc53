"""What `slipstream simulate --validate` does: a live stack, costs from a half, the other half."""

import asyncio
import dataclasses
import json
import os
import statistics
from collections.abc import Sequence
from typing import get_args

import typer

from slipstream.services.cli.console import progress, quiet_logs
from slipstream.services.cli.interruption import Interruption
from slipstream.services.cli.live_load import serve_live
from slipstream.services.cli.running_stack import StackStart, running_stack
from slipstream.services.cli.simulate_options import (
    ClusterOptions,
    CostOptions,
    LoadOptions,
    ResultOptions,
    ValidateOptions,
)
from slipstream.services.cli.simulate_report import aligned, number
from slipstream.services.cli.simulate_setup import cluster_of, load_of
from slipstream.services.cli.stack import StackSettings
from slipstream.services.cli.stack_options import StackOptions
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.config import DecodeConfig, PrefillConfig, WeightChoice
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.estimate import describe_machine
from slipstream.shared.simulation.costs import Costs
from slipstream.shared.simulation.judgement import Judgement, judge_by
from slipstream.shared.simulation.live_fit import NO_SLOWDOWN, SLOWDOWNS, Sharing, fit_live
from slipstream.shared.simulation.live_record import LiveRecord
from slipstream.shared.simulation.refine import nearest

_NUM_WARM = 6
_SETTLE_S = 2.0
_SEATS = (PrefillConfig.num_seats, DecodeConfig.num_seats)  # one variable would set both
_MIN_REQUESTS = 40  # half of them are judged, and their 95th percentile should mean something


@dataclasses.dataclass(frozen=True)
class _Validation:
    cluster: ClusterOptions
    load: LoadOptions
    validate: ValidateOptions

    def judge(self, records: Sequence[LiveRecord], load: LoadOptions) -> tuple[Costs, Judgement]:
        """Fit to the first half, and compare in the second."""
        half = len(records) // 2
        sharing = Sharing(
            self.cluster.prefill,
            self.cluster.decode,
            self.cluster.token_budget,
            self.cluster.prompt_step_ms / 1000,
        )
        asked = load_of(load)
        # A slowdown beside neighbours that always compute can't be told from a higher cost.
        starts = [fit_live(records[:half], sharing, each) for each in (SLOWDOWNS, NO_SLOWDOWN)]
        settings = cluster_of(self.cluster, starts[0], asked.mix.lengths.mean_context())
        costs = nearest(starts, records[:half], settings)
        return costs, judge_by(records, asked.requests(), settings, costs, first_judged=half)


def run_validation(
    cluster: ClusterOptions,
    load: LoadOptions,
    costs: CostOptions,
    validate: ValidateOptions,
    results: ResultOptions,
) -> None:
    """Serve, fit, simulate, compare; print and write. Raises ConfigurationError, FitError."""
    _check(cluster, load, costs, results)
    # Whoever computes a prompt must be seen, so by default it is a prefill worker.
    load = dataclasses.replace(load, route="remote")
    validation = _Validation(cluster, load, validate)
    options = StackOptions(
        model=validate.model,
        cache_dir=validate.cache_dir,
        route="remote",
        policy=cluster.policy,
        engine=validate.engine,
        weight_format=_format(costs.weight_format),
        test_mode=validate.test_mode,
        prefill=cluster.prefill,
        decode=cluster.decode,
        draft=0,
        prefix_cache=False,
    )
    quiet_logs()
    interruption = Interruption()
    live = _serve(options.prepare(is_log_json=True), validation, interruption)
    found = asyncio.run(interruption.guard(live))
    if found is None:
        raise KeyboardInterrupt
    judged = [validation.judge(records, each) for each, records in found]
    typer.echo(_table([each for _, each in judged]))
    _write(validation, judged, results)


def _check(
    cluster: ClusterOptions, load: LoadOptions, costs: CostOptions, results: ResultOptions
) -> None:
    if costs.costs is not None:
        raise ConfigurationError("--validate fits costs of its own: leave --costs out")
    if load.streams is not None or load.route == "local":
        raise ConfigurationError(
            "--validate needs requests at known times, prefilled by a prefill "
            "worker: leave --streams and --route local out"
        )
    if cluster.prefill < 1 or cluster.hosts > 1 or cluster.apart:
        raise ConfigurationError(
            "--validate runs on this host: take --prefill 1 or more, and one host without --apart"
        )
    if (cluster.prefill_seats, cluster.decode_seats) != _SEATS:
        raise ConfigurationError(
            "--validate starts workers with the seats that they have by default: "
            "leave --prefill-seats and --decode-seats out"
        )
    if load.requests < _MIN_REQUESTS:
        raise ConfigurationError(
            f"--requests is {load.requests}; --validate needs at least {_MIN_REQUESTS}"
        )
    if results.plot_file is not None:
        raise ConfigurationError("--validate draws nothing: leave --plot out")


def _format(name: str | None) -> WeightChoice:
    found: tuple[WeightChoice, ...] = get_args(WeightChoice)
    chosen = next((each for each in found if each == (name or "auto")), None)
    if chosen is None:
        raise ConfigurationError(f"--format {name!r} is none of {', '.join(found)}")
    return chosen


async def _serve(
    settings: StackSettings, validation: _Validation, interruption: Interruption
) -> list[tuple[LoadOptions, list[LiveRecord]]]:
    """Serve each run's load on a stack; return the loads with what was seen."""
    start = StackStart(
        settings=settings,
        environment={**os.environ, **_variables(validation.cluster)},
        open_log=lambda _run: lambda _name, _line: None,
    )
    found = []
    async with running_stack(start, interruption) as stack:
        bus = await NatsBus.connect(stack.nats_url, "simulate-validate", stack.access)
        try:
            warm = dataclasses.replace(validation.load, requests=_NUM_WARM, seed=0)
            progress("warming up")
            await serve_live(bus, load_of(warm).requests(), seed=0)
            for number_of_run in range(validation.validate.runs):
                await asyncio.sleep(_SETTLE_S)
                seed = validation.load.seed + number_of_run
                load = dataclasses.replace(validation.load, seed=seed)
                progress(f"run {number_of_run + 1} of {validation.validate.runs}")
                found.append((load, await serve_live(bus, load_of(load).requests(), seed)))
        finally:
            await bus.close()
    return found


def _variables(cluster: ClusterOptions) -> dict[str, str]:
    """Return what the services are told: the same as the simulation."""
    return {
        "SLIPSTREAM_TOKEN_BUDGET": str(cluster.token_budget),
        "SLIPSTREAM_PROMPT_STEP_MS": str(cluster.prompt_step_ms),
        "SLIPSTREAM_STEP_STRETCH": str(cluster.step_stretch),
        "SLIPSTREAM_MAX_NUM_WAITING": str(cluster.max_waiting),
        "SLIPSTREAM_NUM_RESERVED_SEATS": str(cluster.reserved_seats),
        "SLIPSTREAM_DEFAULT_DEADLINE_MS": str(round(1000 * cluster.deadline_s)),
    }


def _medians(judged: Sequence[Judgement]) -> dict[str, float]:
    """Return the median over runs of how far each figure is off, whatever the direction."""
    return {
        name: statistics.median(abs(each.errors[name]) for each in judged)
        for name in judged[0].errors
    }


def _table(judged: Sequence[Judgement]) -> str:
    names = {"ttft_p50_s": "TTFT p50 ms", "ttft_p95_s": "TTFT p95 ms", "tokens_per_s": "tok/s"}
    lines = [
        ("", *(text for name in names.values() for text in (f"{name} live", "simulated", "off")))
    ]
    for idx, each in enumerate(judged):
        cells = [f"run {idx + 1}"]
        for name in names:
            scale = 1000 if name.endswith("_s") and name.startswith("ttft") else 1
            live, simulated = getattr(each.live, name), getattr(each.simulated, name)
            cells += [number(scale * live), number(scale * simulated), f"{each.errors[name]:+.1%}"]
        lines.append(tuple(cells))
    lines.append(
        (
            "median",
            *(text for error in _medians(judged).values() for text in ("", "", f"{error:.1%}")),
        )
    )
    return aligned(lines)


def _write(
    validation: _Validation, judged: Sequence[tuple[Costs, Judgement]], results: ResultOptions
) -> None:
    middle = sorted(judged, key=lambda each: abs(each[1].errors["ttft_p50_s"]))[len(judged) // 2][0]
    if validation.validate.save_costs is not None:
        text = json.dumps(dataclasses.asdict(middle), indent=1)
        validation.validate.save_costs.write_text(text + "\n", encoding="utf-8")
    if results.json_file is None:
        return
    load = dataclasses.asdict(validation.load)
    written = {
        "machine": describe_machine(),
        "cluster": dataclasses.asdict(validation.cluster),
        "load": load | {"trace": str(validation.load.trace) if validation.load.trace else None},
        "model": validation.validate.model,
        "engine": validation.validate.engine,
        "runs": [
            {
                "costs": dataclasses.asdict(costs),
                "live": dataclasses.asdict(each.live),
                "simulated": dataclasses.asdict(each.simulated),
                "errors": each.errors,
            }
            for costs, each in judged
        ],
        "median_errors": _medians([each for _, each in judged]),
    }
    results.json_file.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
