"""Costs from what a live stack was seen to do under a load. Pure."""

import bisect
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from slipstream.shared.config import PrefillConfig
from slipstream.shared.simulation.costs import Costs, Delays, StepTimes
from slipstream.shared.simulation.fit import FitError, Sample, fit
from slipstream.shared.simulation.live_record import LiveRecord
from slipstream.shared.worker.chunks import TILE_ROWS
from slipstream.shared.worker.step_cost import num_pairs

# How much slower a step may be beside a neighbour: the best of these is taken.
SLOWDOWNS = [step / 20 for step in range(41)]
NO_SLOWDOWN = [0.0]
_WORTH = 0.9  # of the error without any must be left at most
_MIN_TOKENS = 4  # of an answer, to tell of steps
_MIN_SAMPLES = 8
_SHORTEST_S = 1e-4
_NUM_PASSES = 4  # how long prompts take says how many rows a step has, and the other way round

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sharing:
    """How many workers of each role share the load that was seen, and the rows of a step."""

    num_prefill: int = 1
    num_decode: int = 1
    token_budget: int = PrefillConfig.token_budget
    prompt_step_s: float = PrefillConfig.prompt_step_ms / 1000

    def num_rows(self, of_prompts: tuple[float, ...]) -> float:
        """Return how many rows of a prompt a step takes, by what they cost."""
        step_s, row_s, _ = of_prompts
        in_time = (self.prompt_step_s - step_s) / row_s if row_s > 0 else self.token_budget
        return min(max(TILE_ROWS, in_time), self.token_budget)


def fit_live(
    records: Sequence[LiveRecord], sharing: Sharing, slowdowns: Sequence[float] = SLOWDOWNS
) -> Costs:
    """
    Return the costs that explain when tokens came. Raises FitError.

    What is between two tokens of a stream depends on how many others stream, and on how much of
    that time prompts are computed beside; how long a prompt takes on what is computed meanwhile.
    """
    remote = [each for each in records if each.prefill_s > 0]
    if len(remote) < _MIN_SAMPLES:
        raise FitError(
            f"{len(remote)} requests were prefilled by a prefill worker; costs need at least "
            f"{_MIN_SAMPLES}: ask more, or with --route remote"
        )
    prompts = [(each.prefill_began_at, each.prefill_ended_at) for each in remote]
    streams = [(each.first_at, each.ended_at) for each in records]
    of_streams, decode_slowdown = _best(
        partial(_stream_samples, records, Busy(prompts), num_workers=sharing.num_decode), slowdowns
    )
    busy_with_streams, num_rows = Busy(streams), float(sharing.token_budget)
    for _ in range(_NUM_PASSES):
        of_prompts, prefill_slowdown = _best(
            partial(
                _prompt_samples,
                remote,
                busy_with_streams,
                num_workers=sharing.num_prefill,
                num_rows_a_step=num_rows,
            ),
            slowdowns,
        )
        num_rows = sharing.num_rows(of_prompts)
    return Costs(
        steps=StepTimes.fitted(of_streams, of_prompts),
        delays=_delays(remote),
        decode_slowdown=decode_slowdown,
        prefill_slowdown=prefill_slowdown,
    )


class Busy:
    """When something went on, of intervals that may overlap."""

    def __init__(self, intervals: Sequence[Interval]) -> None:
        merged: list[list[float]] = []
        for began, ended in sorted(intervals):
            if merged and began <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], ended)
            else:
                merged.append([began, ended])
        self._starts = [each[0] for each in merged]
        self._ends = [each[1] for each in merged]
        lengths = (ended - began for began, ended in merged)
        self._before = [0.0, *itertools.accumulate(lengths)]

    def part_of(self, interval: Interval) -> float:
        """Return the part of an interval in which it did."""
        began, ended = interval
        return (self._until(ended) - self._until(began)) / max(_SHORTEST_S, ended - began)

    def _until(self, time_s: float) -> float:
        idx = bisect.bisect_right(self._starts, time_s)
        if idx == 0:
            return 0.0
        return self._before[idx - 1] + min(time_s, self._ends[idx - 1]) - self._starts[idx - 1]


def _best(
    samples_of: Callable[[float], list[Sample]], slowdowns: Sequence[float]
) -> tuple[tuple[float, ...], float]:
    """Return the costs and the slowdown that explain most; none where it explains little."""
    found = [(_error_of(samples_of(slowdown)), slowdown) for slowdown in slowdowns]
    without = found[0]
    best = min(found, key=lambda each: each[0][0])
    # Where the neighbour always computes, a slowdown can't be told from a higher cost.
    (_, costs), slowdown = best if best[0][0] < _WORTH * without[0][0] else without
    return costs, slowdown


def _error_of(samples: list[Sample]) -> tuple[float, tuple[float, ...]]:
    """Return how far off the costs are that fit best, and these."""
    costs = fit(samples)
    expected = (sum(c * x for c, x in zip(costs, each.features, strict=True)) for each in samples)
    errors = (s / each.seconds - 1 for s, each in zip(expected, samples, strict=True))
    return sum(each * each for each in errors), costs


def _stream_samples(
    records: Sequence[LiveRecord], prompts: Busy, slowdown: float, num_workers: int
) -> list[Sample]:
    """Return the mean step of each stream: how many streams and how much context it had."""
    samples = []
    for each in records:
        num_steps = each.num_output_tokens - 1
        span = (each.first_at, each.ended_at)
        if num_steps < _MIN_TOKENS or span[1] - span[0] < _SHORTEST_S:
            continue
        shared = [(other, _overlap(span, (other.first_at, other.ended_at))) for other in records]
        # The stream itself is one of them; the others are spread over the workers.
        others = sum(part for other, part in shared if other is not each) / num_workers
        context = sum(
            part * (other.num_prompt_tokens + other.num_output_tokens / 2)
            for other, part in shared
            if other is not each
        )
        own = each.num_prompt_tokens + each.num_output_tokens / 2
        factor = 1 + slowdown * prompts.part_of(span)
        features = (factor, factor * (1 + others), factor * (own + context / num_workers))
        samples.append(Sample(features, (span[1] - span[0]) / num_steps))
    if len(samples) < _MIN_SAMPLES:
        raise FitError(
            f"{len(samples)} answers have more than {_MIN_TOKENS} tokens; costs need at least "
            f"{_MIN_SAMPLES}: ask more, or for longer ones with --output-tokens"
        )
    return samples


def _prompt_samples(
    remote: Sequence[LiveRecord],
    streams: Busy,
    slowdown: float,
    num_workers: int,
    num_rows_a_step: float,
) -> list[Sample]:
    """Return what was computed while each prompt was: itself, and the part of others meanwhile."""
    samples = []
    for each in remote:
        span = (each.prefill_began_at, each.prefill_ended_at)
        num_steps = rows = pairs = 0.0
        for other in remote:
            other_span = (other.prefill_began_at, other.prefill_ended_at)
            part = _overlap(other_span, span)
            if other is not each:
                part /= num_workers
            tokens = other.num_prompt_tokens
            num_steps += part * math.ceil(tokens / num_rows_a_step)
            rows += part * tokens
            pairs += part * num_pairs(0, tokens)
        factor = 1 + slowdown * streams.part_of(span)
        features = (factor * num_steps, factor * rows, factor * pairs)
        samples.append(Sample(features, max(_SHORTEST_S, each.prefill_s)))
    return samples


def _overlap(of: Interval, with_: Interval) -> float:
    """Return the part of the first interval that lies in the second."""
    length = max(_SHORTEST_S, of[1] - of[0])
    return max(0.0, min(of[1], with_[1]) - max(of[0], with_[0])) / length


def _delays(remote: Sequence[LiveRecord]) -> Delays:
    """Return the delays of a first token beside queue, prompt and hand-over, as far as is known."""
    hand_over_s = statistics.median(each.hand_over_s for each in remote)
    # Of those that hardly waited the rest is messages; of others it holds turns at the worker, too.
    rests = sorted(
        each.first_at - each.arrived_at - each.queue_s - each.prefill_s - each.hand_over_s
        for each in remote
    )
    rest_s = max(0.0, rests[len(rests) // 4])
    return Delays(
        admit_s=rest_s / 4,
        dispatch_s=rest_s / 4,
        lease_s=rest_s / 4,
        hand_over_s=hand_over_s + rest_s / 4,
        answer_s=0.0,
        report_s=rest_s / 4,
        step_gap_s=0.0,  # it is in the steps
    )
