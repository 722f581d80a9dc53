"""The workload of `slipstream bench ablation`: a trace's lengths, real text, one beginning."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.services.cli.ablation_options import AblationOptions
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.load.arrivals import StreamArrivals
from slipstream.shared.measure.load.load import Load
from slipstream.shared.measure.load.requests import PlannedRequest, TraceShapes, check_lengths
from slipstream.shared.measure.load.traces import SLICE, read_requests
from slipstream.shared.measure.prompt_sets import SETS, read_set
from slipstream.shared.messages.packed import PackedInts

_SYSTEM_TEXT = (
    "You are a careful assistant. Answer in plain words, and say so where you are not sure. Keep "
    "to what was asked; where a text is given, keep to the text. Do not repeat the question. "
)
_GIVE_UP_S = 900.0  # a stack without everything takes a minute or two
_PAUSE_S = 0.0  # the next request comes as soon as one has ended

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Workload:
    """Requests that are the same in every run of every stack."""

    requests: Sequence[PlannedRequest]
    num_streams: int
    num_system_tokens: int
    length_factor: float

    @property
    def num_output_tokens(self) -> int:
        """Of all answers."""
        return sum(each.num_output_tokens for each in self.requests)

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts, the shared beginning counted in each."""
        return sum(len(each.token_ids) for each in self.requests)

    def load(self, num_requests: int | None = None) -> Load:
        """Return it, or its first requests, as what a client runs: over when all are answered."""
        limit = min(num_requests or len(self.requests), len(self.requests))

        def arrivals() -> StreamArrivals:
            rng = random.Random(0)  # noqa: S311 - nothing is drawn without pauses
            return StreamArrivals(self.num_streams, _GIVE_UP_S, 0.0, _PAUSE_S, rng, limit)

        return Load(arrivals, self.requests.__getitem__, 0.0, 0.01, _GIVE_UP_S)


def make_workload(options: AblationOptions, encode: Encode, max_context: int) -> Workload:
    """Return the requests of a slice. Raises ConfigurationError, TraceError."""
    check_lengths(options.context, max_context, f"lower --context to {max_context}")
    room = options.context - options.system
    if room < 2:  # noqa: PLR2004 - a token of a prompt, and one of an answer
        raise ConfigurationError(
            f"--system {options.system} leaves no room for prompts and answers in --context "
            f"{options.context}: lower the one or raise the other"
        )
    trace = read_requests(SLICE if options.trace is None else options.trace)
    if len(trace) < options.requests:
        raise ConfigurationError(
            f"--requests {options.requests} and the trace has {len(trace)}: ask for fewer"
        )
    shapes = TraceShapes(trace[: options.requests], room)
    system = _tokens_of([_SYSTEM_TEXT], encode, options.system, 0)
    texts = _texts()
    requests = []
    for number in range(options.requests):
        lengths = shapes.shape(number).lengths
        own = _tokens_of(texts, encode, lengths.num_prompt_tokens, number)
        requests.append(
            PlannedRequest(
                PackedInts([*system, *own]),
                lengths.num_output_tokens,
                latency_class="batch",  # refused by nobody, however slow a stack is
                temperature=options.temperature,
                seed=options.seed + number,
                speculation=None,
            )
        )
    return Workload(requests, options.streams, len(system), shapes.factor)


def _texts() -> list[str]:
    """Return the prompts that speculation is measured with, one kind after another in turns."""
    sets = [read_set(name).prompts for name in SETS]
    return [each.text for kinds in zip(*sets, strict=False) for each in kinds]


def _tokens_of(texts: Sequence[str], encode: Encode, num_tokens: int, first: int) -> list[int]:
    """Return so many tokens of the texts, from one of them on and over and over."""
    found: list[int] = []
    idx = first
    while len(found) < num_tokens:
        found += encode(texts[idx % len(texts)] + "\n")
        idx += 1
    return found[:num_tokens]
