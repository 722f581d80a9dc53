"""Costs that were fitted, mended until a simulation of the same requests comes nearest."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from slipstream.shared.ids import RequestId
from slipstream.shared.simulation.cluster import ClusterSettings
from slipstream.shared.simulation.costs import Costs, Delays, StepTimes
from slipstream.shared.simulation.live_record import LiveRecord
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.simulation.run import Simulation

# A cost is tried so many times larger and smaller, until neither is better.
_FACTORS = (1.3, 1.12, 1.05, 1.02)
_MAX_NUM_ROUNDS = 8  # of each
_FIXED_PARTS = (0.02, 0.12, 0.24, 0.36, 0.48, 0.6)  # of a step of prompts with so many rows
_SOME_ROWS = 128
_SCALES = (0.75, 0.87, 1.0, 1.15, 1.3)
_NUM_REFINED = 2  # of each start
# So that a factor can move what was none.
_LEAST_SLOWDOWN = 0.02
_LEAST_STEP_S = 5e-4
_SHORTEST_S = 1e-4

# What is changed together.
_PROMPTS = ("prompt_step_s", "prompt_row_s", "prompt_pair_s")
_STREAMS = ("step_s", "stream_row_s", "stream_context_s")
_DELAYS = ("admit_s", "dispatch_s", "lease_s", "hand_over_s", "report_s")

_Values = TypeVar("_Values", Costs, StepTimes, Delays)


def nearest(
    starts: Sequence[Costs], records: Sequence[LiveRecord], cluster: ClusterSettings
) -> Costs:
    """
    Return the best that is found from several starts.

    How much of a step of prompts is fixed decides how they are cut, and is what a fit tells least:
    all parts of it are tried.
    """
    found = [
        refined(each, records, cluster)
        for start in starts
        for each in _nearest_of(_variants(start), records, cluster)
    ]
    return min(found, key=lambda each: loss(each, records, cluster))


def _nearest_of(
    candidates: Iterable[Costs], records: Sequence[LiveRecord], cluster: ClusterSettings
) -> list[Costs]:
    return sorted(candidates, key=lambda each: loss(each, records, cluster))[:_NUM_REFINED]


def _variants(costs: Costs) -> Iterator[Costs]:
    for part in _FIXED_PARTS:
        for scale in _SCALES:
            yield _scale_steps(_with_fixed_part(costs, part), scale, _PROMPTS)


def _with_fixed_part(costs: Costs, part: float) -> Costs:
    """Return costs in which a step of some rows lasts as long, and so much of it is fixed."""
    steps = costs.steps
    seconds = steps.prompt_step_s + _SOME_ROWS * steps.prompt_row_s
    row_s = (1 - part) * seconds / _SOME_ROWS
    return replace(costs, steps=replace(steps, prompt_step_s=part * seconds, prompt_row_s=row_s))


def refined(costs: Costs, records: Sequence[LiveRecord], cluster: ClusterSettings) -> Costs:
    """
    Return costs under which simulated times to the first and the last token are nearest.

    A fit by parts of the time takes the prompts in a worker to share it evenly; the rules by which
    they really do are those of the simulation.
    """
    best, least = costs, loss(costs, records, cluster)
    for factor in _FACTORS:
        for _ in range(_MAX_NUM_ROUNDS):
            tried = [(loss(each, records, cluster), each) for each in _near(best, factor)]
            found, candidate = min(tried, key=lambda each: each[0])
            if found >= least:
                break
            best, least = candidate, found
    return best


def loss(costs: Costs, records: Sequence[LiveRecord], cluster: ClusterSettings) -> float:
    """Return how far off simulated times are on average, as logarithms of their ratios."""
    requests = [_request(record, number) for number, record in enumerate(records)]
    Simulation(cluster, costs).serve(sorted(requests, key=lambda each: each.arrived_at))
    total = 0.0
    for record, request in zip(records, requests, strict=True):
        if request.first_at is None or request.ended_at is None:
            return math.inf  # it was refused
        live = (record.first_at - record.arrived_at, record.ended_at - record.first_at)
        simulated = (request.first_at - request.arrived_at, request.ended_at - request.first_at)
        total += sum(map(_distance, live, simulated))
    return total / len(records)


def _distance(live_s: float, simulated_s: float) -> float:
    return abs(math.log(max(_SHORTEST_S, simulated_s) / max(_SHORTEST_S, live_s)))


def _request(record: LiveRecord, number: int) -> SimulatedRequest:
    return SimulatedRequest(
        request_id=RequestId(str(number)),
        arrived_at=record.arrived_at,
        num_prompt_tokens=record.num_prompt_tokens,
        num_output_tokens=record.num_output_tokens,
        max_tokens=record.num_output_tokens,
        tenant=record.tenant,
        latency_class=record.latency_class,
        route="remote" if record.prefill_s > 0 else "local",
    )


def _near(costs: Costs, factor: float) -> Iterator[Costs]:
    """Yield costs in which one thing is larger or smaller."""
    for by in (factor, 1 / factor):
        for change in _CHANGES:
            yield change(costs, by)


def _scale_steps(costs: Costs, by: float, names: Sequence[str], least_s: float = 0.0) -> Costs:
    return replace(costs, steps=_scaled(costs.steps, by, names, least_s))


def _scale_delays(costs: Costs, by: float) -> Costs:
    return replace(costs, delays=_scaled(costs.delays, by, _DELAYS))


def _scaled(values: _Values, by: float, names: Sequence[str], least: float = 0.0) -> _Values:
    """Return values of which some are so many times larger, and so many times `least` at least."""
    return replace(values, **{name: by * max(least, getattr(values, name)) for name in names})


_CHANGES: tuple[Callable[[Costs, float], Costs], ...] = (
    partial(_scale_steps, names=_PROMPTS),
    partial(_scale_steps, names=_STREAMS),
    partial(_scale_steps, names=("prompt_step_s",), least_s=_LEAST_STEP_S),
    partial(_scale_steps, names=("step_s",), least_s=_LEAST_STEP_S),
    _scale_delays,
    partial(_scaled, names=("decode_slowdown",), least=_LEAST_SLOWDOWN),
    partial(_scaled, names=("prefill_slowdown",), least=_LEAST_SLOWDOWN),
)
