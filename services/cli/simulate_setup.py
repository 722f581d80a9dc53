"""What the options of `slipstream simulate` mean: cluster, load and costs."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from slipstream.services.cli.simulate_options import (
    ClusterOptions,
    CostOptions,
    LoadOptions,
    PlanOptions,
)
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.load.traces import Lengths, TraceError, read_requests
from slipstream.shared.messages.common import LatencyClassName
from slipstream.shared.scheduling.placement import PlacementRules
from slipstream.shared.scheduling.workload import Rates
from slipstream.shared.simulation.cluster import ClusterSettings
from slipstream.shared.simulation.costs import Costs, fake_steps
from slipstream.shared.simulation.fit import fit_cells
from slipstream.shared.simulation.load import (
    NO_BURSTS,
    Bursts,
    LengthRange,
    LengthSamples,
    Mix,
    RequestMaker,
    poisson,
    replayed,
)
from slipstream.shared.simulation.owner import WorkerRules
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.simulation.results import Targets
from slipstream.shared.simulation.run import Outcome, Simulation
from slipstream.shared.simulation.scheduler import AdmissionRules

_NUM_FAKE_COSTS = 3
_DEFAULT_RATE = 1.0


@dataclass(frozen=True)
class Load:
    """Requests as often as they are wanted: each time the same."""

    mix: Mix
    options: LoadOptions
    bursts: Bursts
    trace: list[tuple[float, Lengths]]  # empty: none, or only for its lengths

    def serve(self, simulation: Simulation) -> Outcome:
        """Have it served."""
        options, maker = self.options, RequestMaker(self.mix, self.options.seed)
        if options.streams is not None:
            return simulation.serve_streams(maker, options.streams, options.requests)
        return simulation.serve(self._coming(maker))

    def requests(self) -> list[SimulatedRequest]:
        """Return all requests of an open load."""
        return list(self._coming(RequestMaker(self.mix, self.options.seed)))

    def _coming(self, maker: RequestMaker) -> Iterator[SimulatedRequest]:
        options = self.options
        if self.trace:
            return replayed(maker, self.trace, options.requests, options.rate)
        rate = options.rate or _DEFAULT_RATE
        return poisson(maker, rate, options.requests, options.seed, self.bursts)


def load_of(options: LoadOptions) -> Load:
    """Return what is asked. Raises ConfigurationError, TraceError."""
    if options.streams is not None and (options.rate or options.trace or options.bursts):
        raise ConfigurationError(
            "--streams ask when they have their answer: leave out --rate, --trace and --bursts"
        )
    if options.poisson and (options.trace is None or options.rate is None):
        raise ConfigurationError("--poisson needs --trace for the lengths, and --rate")
    if options.bursts and options.trace is not None and not options.poisson:
        raise ConfigurationError(
            "--bursts and the times of --trace exclude each other: "
            "take --poisson for its lengths only"
        )
    trace: list[tuple[float, Lengths]] = []
    if options.trace is not None:
        trace = _traced(options.trace, options.max_context)
    lengths: LengthRange | LengthSamples = LengthRange(
        _range(options.prompt_tokens, "--prompt-tokens"),
        _range(options.output_tokens, "--output-tokens"),
    )
    if options.poisson:
        lengths = LengthSamples([each for _, each in trace])
        trace = []
    mix = Mix(
        lengths=lengths,
        classes=_classes(options.classes),
        tenants=shares(options.tenants, "--tenants") if options.tenants else {},
        route=options.route,
    )
    bursts = _bursts(options.bursts) if options.bursts else NO_BURSTS
    return Load(mix, options, bursts, trace)


def _traced(path: Path, max_context: int) -> list[tuple[float, Lengths]]:
    """Return when the requests of a trace came, and their lengths, cut to fit a context."""
    found = []
    for each in read_requests(path):
        if each.at_s is None:
            raise TraceError(path, None, "has no times: take --poisson and --rate with it")
        found.append((each.at_s, each.lengths.within(max_context)))
    found.sort(key=lambda each: each[0])
    return [(at_s - found[0][0], lengths) for at_s, lengths in found]


def cluster_of(options: ClusterOptions, costs: Costs, mean_context: float) -> ClusterSettings:
    """Return what is simulated; the scheduler's idea of work is that of its costs."""
    steps = costs.steps
    num_rows = options.token_budget
    prompt_s = steps.prompt_step_s + num_rows * steps.prompt_row_s
    stream_s = steps.step_s + steps.stream_row_s + steps.stream_context_s * mean_context
    return ClusterSettings(
        num_prefill=options.prefill,
        num_decode=options.decode,
        num_hosts=options.hosts,
        is_apart=options.apart,
        policy=options.policy,
        max_num_waiting=options.max_waiting,
        placement=PlacementRules(
            min_num_remote_tokens=options.min_remote_tokens,
            num_reserved_seats=options.reserved_seats,
        ),
        admission=AdmissionRules(
            deadline_s=options.deadline_s,
            rates=Rates(prompt_tokens_per_s=num_rows / prompt_s, output_tokens_per_s=1 / stream_s),
            look_every_s=options.look_every_ms / 1000,
        ),
        workers=WorkerRules(
            num_prefill_seats=options.prefill_seats,
            num_decode_seats=options.decode_seats,
            token_budget=options.token_budget,
            prompt_step_s=options.prompt_step_ms / 1000,
            step_stretch=options.step_stretch,
        ),
    )


def costs_of(options: CostOptions) -> Costs:
    """Return the costs of a file, or of the fake engine. Raises ConfigurationError, FitError."""
    if options.costs is None:
        return Costs(steps=fake_steps(*_fake_costs(options.fake)))
    try:
        text = options.costs.read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--costs {options.costs}: {error}") from error
    if isinstance(found, dict) and "steps" in found:
        return read_costs(options.costs, text)
    cells = found.get("cells") if isinstance(found, dict) else None
    if not cells:
        raise ConfigurationError(
            f"--costs {options.costs} holds no cells: it is what `slipstream bench engine --json` "
            "or `slipstream simulate --save-costs` writes"
        )
    return Costs(steps=fit_cells(_of_format(cells, options)))


def read_costs(path: Path, text: str) -> Costs:
    """Return costs that were written as they are. Raises ConfigurationError."""
    try:
        return msgspec.json.decode(text, type=Costs)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"--costs {path}: {error}") from error


def targets_of(options: PlanOptions) -> Targets:
    """Return what requests are to be served within."""
    return Targets(_seconds(options.target_ttft_ms), _seconds(options.target_tpot_ms))


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _of_format(
    cells: list[dict[str, Any]], options: CostOptions
) -> list[dict[str, Any]]:  # Any: text and numbers
    """Return the cells of one engine: fused, of the format that is wanted or the first."""
    formats = list(dict.fromkeys(each["format"] for each in cells))
    wanted = options.weight_format or formats[0]
    if wanted not in formats:
        raise ConfigurationError(
            f"--format {wanted} was not measured in {options.costs}: take one of "
            f"{', '.join(formats)}"
        )
    of_format = [each for each in cells if each["format"] == wanted]
    return [each for each in of_format if each["fused"]] or of_format


def _fake_costs(text: str) -> tuple[float, float, float]:
    try:
        step_ms, row_us, context_token_ns = (float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigurationError(
            f"--fake is {text!r}: write {_NUM_FAKE_COSTS} numbers, for example 5,50,20"
        ) from error
    if step_ms <= 0 or min(row_us, context_token_ns) < 0:
        raise ConfigurationError(
            f"--fake is {text!r}: a step takes time, and nothing takes less than none"
        )
    return step_ms, row_us, context_token_ns


def _range(text: str, option: str) -> tuple[int, int]:
    """Return the bounds of `512` or `100-800`."""
    first, _, last = text.partition("-")
    try:
        low, high = int(first), int(last or first)
    except ValueError as error:
        raise ConfigurationError(f"{option} is {text!r}: write 512, or 100-800") from error
    if not 1 <= low <= high:
        raise ConfigurationError(f"{option} is {text!r}: lengths are at least 1, and grow")
    return low, high


def shares(text: str, option: str) -> dict[str, float]:
    """Return the numbers of `a=0.9,b=0.1`. Raises ConfigurationError."""
    found = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            found[name.strip()] = float(share)
        except ValueError as error:
            raise ConfigurationError(f"{option} is {text!r}: write a=0.9,b=0.1") from error
    if min(found.values()) <= 0 or "" in found:
        raise ConfigurationError(f"{option} is {text!r}: each has a name, and a share above 0")
    return found


def _classes(text: str) -> Mapping[LatencyClassName, float]:
    found = shares(text, "--classes")
    known = get_args(LatencyClassName)
    unknown = next((name for name in found if name not in known), None)
    if unknown is not None:
        raise ConfigurationError(f"--classes {unknown!r} is none of {', '.join(known)}")
    return {name: found[name] for name in known if name in found}


def _bursts(text: str) -> Bursts:
    try:
        factor, period_s, burst_s = (float(part) for part in text.split(":"))
    except ValueError as error:
        raise ConfigurationError(
            f"--bursts is {text!r}: write FACTOR:PERIOD:SECONDS, for example 4:60:5"
        ) from error
    if not 0 < burst_s < period_s or factor < 1 or factor * burst_s > period_s:
        raise ConfigurationError(
            f"--bursts is {text!r}: a burst is shorter than its period, its factor is at least 1, "
            f"and here at most {period_s / burst_s if burst_s > 0 else 0:g}, which leaves nothing "
            "for the rest of the period"
        )
    return Bursts(factor, period_s, burst_s)
