"""What the options of `slipstream bench serve` ask for, checked. Pure but for the trace's file."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from slipstream.services.cli.bench_run import parse_numbers
from slipstream.services.cli.name_lists import parse_names
from slipstream.services.cli.serve_bench_options import ServeBenchOptions
from slipstream.services.cli.serve_bench_values import (
    parse_classes,
    parse_positive,
    parse_shares,
    parse_targets,
)
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.load.arrivals import (
    Arrivals,
    ScheduledArrivals,
    StreamArrivals,
    burst_times,
    even_times,
    poisson_times,
    traced_times,
)
from slipstream.shared.measure.load.load import Load
from slipstream.shared.measure.load.requests import (
    PlannedRequest,
    RequestMaker,
    SyntheticShapes,
    TraceShapes,
    check_lengths,
)
from slipstream.shared.measure.load.summary import Targets
from slipstream.shared.measure.load.traces import Lengths, TracedRequest, read_requests

_DEFAULT_STREAMS = "32"
_RAMP = 0.5  # of the warm-up: until then streams begin
MODES = ("aggregated", "disaggregated")


@dataclass(frozen=True, slots=True)
class Level:
    """How much is asked for: streams of a closed loop, or requests a second of an open one."""

    streams: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.streams} streams" if self.rate is None else f"{self.rate:.3g} requests/s"


@dataclass(frozen=True)
class ServePlan:
    """A benchmark that can be run."""

    options: ServeBenchOptions
    levels: Sequence[Level]  # empty: as parts of what the stack can do
    loads: Sequence[float]  # those parts
    targets: Targets
    maker: RequestMaker
    trace: Sequence[TracedRequest]
    max_num_tokens: int  # of the longest request
    modes: Sequence[str]  # of --compare
    budgets: Sequence[tuple[int, int]]  # token budget and longest step of prompts

    @cached_property
    def request(self) -> Callable[[int], PlannedRequest]:
        """Makes each request once: all runs have the same ones."""
        return lru_cache(maxsize=None)(self.maker.make)

    @property
    def length_factor(self) -> float | None:
        """By what the trace's lengths are multiplied."""
        return self.maker.shapes.factor if isinstance(self.maker.shapes, TraceShapes) else None

    def levels_at(self, capacity: float) -> list[Level]:
        """Return the levels of a stack that can do so many requests a second."""
        return [Level(rate=part * capacity) for part in self.loads]

    def load(self, level: Level, round_idx: int, seconds: float | None = None) -> Load:
        """Return the load of a level in a round, the same for every mode."""
        options = self.options
        seconds = options.seconds if seconds is None else seconds
        end_s = options.warmup + seconds
        if level.streams is not None:
            streams = level.streams

            def arrivals() -> Arrivals:
                times_s = (end_s, _RAMP * options.warmup, options.pause / 1000)
                return StreamArrivals(streams, *times_s, self._rng("pauses", round_idx))

            num_sure = streams
        else:
            times_s = self._times(level, end_s, round_idx)

            def arrivals() -> Arrivals:
                return ScheduledArrivals(times_s)

            num_sure = len(times_s)
        for number in range(num_sure):
            self.request(number)  # made now, not while it is due
        return Load(arrivals, self.request, options.warmup, seconds, options.drain)

    def _times(self, level: Level, end_s: float, round_idx: int) -> list[float]:
        assert level.rate is not None, "an open loop"
        rng = self._rng("arrivals", round_idx)
        if self.trace:
            times_s = [each.at_s for each in self.trace if each.at_s is not None]
            return traced_times(times_s, end_s, level.rate)
        match self.options.pattern:
            case "poisson":
                return poisson_times(level.rate, end_s, rng)
            case "bursts":
                return burst_times(level.rate, end_s, self.options.burst, rng)
            case "even":
                return even_times(level.rate, end_s)

    def _rng(self, what: str, round_idx: int) -> random.Random:
        return random.Random(f"{self.options.seed} {what} {round_idx}")  # noqa: S311 - no secret


def make_plan(options: ServeBenchOptions, vocab_size: int, max_context: int) -> ServePlan:
    """Check the options against each other and the model. Raises ConfigurationError, TraceError."""
    _check_choice(options)
    trace = [] if options.trace is None else read_requests(options.trace)
    trace.sort(key=lambda each: each.at_s or 0.0)  # as a rule it is in order
    shapes: SyntheticShapes | TraceShapes
    if trace:
        limit = max_context if options.context is None else options.context
        check_lengths(limit, max_context, f"lower --context to {max_context}")
        shapes = TraceShapes(trace, limit)
    else:
        mean = Lengths(options.prompt, options.output)
        shapes = SyntheticShapes(mean, options.spread, options.seed)
        check_lengths(shapes.max_num_tokens, max_context, "lower --prompt, --output or --spread")
    plan = ServePlan(
        options=options,
        levels=_levels(options),
        loads=parse_positive(options.load, "--load"),
        targets=parse_targets(options.targets),
        maker=RequestMaker(
            shapes,
            vocab_size,
            options.seed,
            parse_classes(options.classes),
            parse_shares(options.tenants, "--tenants"),
        ),
        trace=trace,
        max_num_tokens=shapes.max_num_tokens,
        modes=_modes(options),
        budgets=[
            (budget, step)
            for budget in parse_numbers(options.budgets, "--budgets")
            for step in parse_numbers(options.prompt_steps, "--prompt-steps")
        ],
    )
    _check_trace(plan)
    return plan


def _check_choice(options: ServeBenchOptions) -> None:
    if options.json_file is not None and not options.json_file.parent.is_dir():
        raise ConfigurationError(
            f"--json {options.json_file}: there is no directory {options.json_file.parent}; make it"
        )
    if options.streams is not None and options.rate is not None:
        raise ConfigurationError(
            "--streams keeps so many requests running, --rate sends them whatever runs: give one "
            "of the two"
        )
    if options.trace is not None and options.pattern != "poisson":
        raise ConfigurationError(
            f"--arrivals {options.pattern} and --trace: requests of a trace come as they came "
            "there; leave one of the two out"
        )
    if options.trace is None and options.context is not None:
        raise ConfigurationError(
            "--context scales the lengths of a --trace; without one --prompt and --output are "
            "the lengths"
        )
    if options.url is not None and options.compare is not None:
        raise ConfigurationError(
            "--compare starts a stack for each mode and --url measures one that runs: give one of "
            "the two"
        )


def _levels(options: ServeBenchOptions) -> list[Level]:
    if options.rate is not None:
        return [Level(rate=rate) for rate in parse_positive(options.rate, "--rate")]
    if options.streams is not None:
        return [Level(streams=n) for n in parse_numbers(options.streams, "--streams")]
    if options.trace is not None or options.compare is not None:
        return []
    return [Level(streams=n) for n in parse_numbers(_DEFAULT_STREAMS, "--streams")]


def _modes(options: ServeBenchOptions) -> Sequence[str]:
    if options.compare is None:
        return ()
    modes = parse_names(options.compare, "--compare", MODES)
    if sorted(modes) != sorted(MODES):
        raise ConfigurationError(f"--compare {options.compare!r}: name each of {', '.join(MODES)}")
    return modes


def _check_trace(plan: ServePlan) -> None:
    is_open = not plan.levels or plan.levels[0].rate is not None
    if is_open and any(each.at_s is None for each in plan.trace):
        raise ConfigurationError(
            f"{plan.options.trace} does not say when its requests came (TIMESTAMP, or timestamp): "
            "take its lengths alone, with --streams"
        )


def describe(plan: ServePlan) -> Mapping[str, object]:
    """Return what the figures depend on."""
    options = plan.options
    settings: dict[str, object] = {
        "url": options.url,
        "trace": None if options.trace is None else options.trace.name,
        "arrivals": "trace" if options.trace is not None else options.pattern,
        "seconds": options.seconds,
        "warmup_s": options.warmup,
        "pause_ms": options.pause,
        "drain_s": options.drain,
        "rounds": options.rounds,
        "seed": options.seed,
        "classes": dict(plan.maker.classes),
        "tenants": dict(plan.maker.tenants),
        "max_request_tokens": plan.max_num_tokens,
    }
    if plan.length_factor is not None:
        return {**settings, "trace_length_factor": plan.length_factor}
    lengths = ("prompt", "output", "spread")
    return {**settings, **{name: getattr(options, name) for name in lengths}}
