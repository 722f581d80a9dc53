"""What a decode worker counts, and what it shows of its sequences."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import get_args

from slipstream.services.decode.batch import Part
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.messages.common import FinishReason, Timings, Usage
from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.meter import Meter, Readings
from slipstream.shared.worker.engine import EngineThread
from slipstream.shared.worker.step_metrics import StepMetrics

_OUTCOMES = ("proposed", "tested", "accepted")


class DecodeMetrics:
    """Its steps, tokens and times, and the endings that it sends."""

    def __init__(self, meter: Meter) -> None:
        self.steps = StepMetrics(meter)
        self._meter = meter
        self._finished = meter.counter(metric_names.FINISHED)
        self._failed = meter.counter(metric_names.FAILED)
        self._prompt_tokens = meter.counter(metric_names.PROMPT_TOKENS)
        self._cached_tokens = meter.counter(metric_names.CACHED_TOKENS)
        self._output_tokens = meter.counter(metric_names.OUTPUT_TOKENS)
        self._draft_tokens = meter.counter(metric_names.DRAFT_TOKENS)
        self._preemptions = meter.counter(metric_names.PREEMPTIONS)
        self._time_to_first_token = meter.histogram(metric_names.TIME_TO_FIRST_TOKEN)
        self._time_per_output_token = meter.histogram(metric_names.TIME_PER_OUTPUT_TOKEN)
        # Known from the start: a rate needs the zero before the first.
        for reason in get_args(FinishReason):
            self._finished.add(reason, amount=0)
        for outcome in _OUTCOMES:
            self._draft_tokens.add(outcome, amount=0)

    def stepped(self, parts: Sequence[Part]) -> None:
        """Count a step by its parts, after their results were taken over."""
        self.steps.stepped(len(parts))
        for part in parts:
            self.steps.row_failed(part.error)
            for outcome, number in zip(_OUTCOMES, part.num_drafts, strict=True):
                self._draft_tokens.add(outcome, amount=number)

    def began(self, usage: Usage, timings: Timings) -> None:
        """Count a request that has its first token."""
        self._prompt_tokens.add(amount=usage.num_prompt_tokens)
        self._cached_tokens.add(amount=usage.num_cached_tokens)
        self._time_to_first_token.record(timings.ttft_ms / 1000)

    def emitted(self, num_tokens: int) -> None:
        """Count output tokens."""
        self._output_tokens.add(amount=num_tokens)

    def preempted(self) -> None:
        """Count a sequence that gave its blocks back."""
        self._preemptions.add()

    def finished(self, reason: FinishReason, timings: Timings) -> None:
        """Count an answer that was sent."""
        self._finished.add(reason)
        if timings.tpot_ms is not None:
            self._time_per_output_token.record(timings.tpot_ms / 1000)

    def failed(self, code: str) -> None:
        """Count an error that was sent as a request's ending."""
        self._failed.add(code)

    def watch(
        self, sequences: Callable[[], Iterable[DecodeSequence]], engine: EngineThread
    ) -> None:
        """Show the sequences that are held, by state, and the time of the engine."""
        self._meter.watch(metric_names.REQUESTS, lambda: _requests(sequences()))
        self.steps.watch(engine)


def _requests(sequences: Iterable[DecodeSequence]) -> Readings:
    counted = Counter(_state(sequence) for sequence in sequences)
    states = ("waiting", "prefilling", "running")
    return {("decode", state): counted[state] for state in states}


def _state(sequence: DecodeSequence) -> str:
    if sequence.is_over:
        return "running"  # until its ending is sent and its blocks are back
    if sequence.lease_id is None:
        return "waiting"
    return "prefilling" if sequence.num_pending_tokens > 1 else "running"
