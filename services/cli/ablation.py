"""What `slipstream bench ablation` measures: everything on, and a layer left out, in turns."""

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field

from slipstream.services.cli.ablation_layers import Variant
from slipstream.services.cli.ablation_workload import Workload
from slipstream.services.cli.connection import operator_access
from slipstream.services.cli.interruption import Interruption
from slipstream.services.cli.serve_bench_client import LoadClient
from slipstream.services.cli.serve_bench_stacks import Mode, started_stack
from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.client.counters import ask_counters, spans_between
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import WorkerId
from slipstream.shared.measure.load.samples import Sample
from slipstream.shared.measure.pairs import is_first_first
from slipstream.shared.telemetry import metric_names

_NUM_WARMUP_REQUESTS = 6  # a worker learns what its steps cost
Report = Callable[[str], None]


class UnansweredError(SlipstreamError):
    """A stack that does not answer every request can't be compared with one that does."""

    code = "unanswered"


@dataclass(frozen=True)
class Window:
    """One run of the workload."""

    samples: Sequence[Sample]
    num_bytes: float | None  # that the engine moved; None where it doesn't count them

    @property
    def num_tokens(self) -> int:
        """Of all answers."""
        return sum(sample.num_tokens for sample in self.samples)

    @property
    def seconds(self) -> float:
        """From the first request to the last token."""
        first = min(sample.due_s for sample in self.samples)
        return max(sample.arrivals[-1][0] for sample in self.samples) - first

    @property
    def throughput(self) -> float:
        """Output tokens a second."""
        return self.num_tokens / self.seconds

    @property
    def token_ids(self) -> list[list[int]]:
        """The answers, in the order of the requests."""
        return [sample.token_ids for sample in self.samples]


@dataclass
class Pairs:
    """The runs of a variant, each with the one of everything on that it was beside."""

    variant: Variant
    without: list[Window] = field(default_factory=list)
    with_all: list[Window] = field(default_factory=list)


@dataclass
class MeasuredStack:
    """A stack that is up."""

    name: str
    client: LoadClient
    bus: Bus
    processes: Collection[WorkerId] = ()

    async def run(self, workload: Workload, salt: str, num_requests: int | None = None) -> Window:
        """Run the workload, or its first requests, once. Raises UnansweredError."""
        before = await ask_counters(self.bus, expected=self.processes)
        self.processes = list(before)
        found = await self.client.run(workload.load(num_requests), salt)
        spans = spans_between(before, await ask_counters(self.bus, expected=self.processes))
        for sample in found.samples:
            if not sample.is_served:
                raise UnansweredError(
                    f"{self.name}: a request was not answered in full "
                    f"({sample.error or 'the time was up'})"
                )
        moved = [span.total(metric_names.ENGINE_BYTES.name) for span in spans]
        return Window(found.samples, sum(moved) or None)


@dataclass
class Ablation:
    """Runs the stacks: the one with everything on all the time, the others one after another."""

    workload: Workload
    num_rounds: int
    interruption: Interruption
    report: Report

    async def measure(self, everything_on: Mode, variants: Sequence[Variant]) -> list[Pairs]:
        """Return the runs of all variants. Raises StackError, UnansweredError."""
        async with self._started(everything_on) as reference:
            return [
                await self._compare(reference, variant, turn_idx)
                for turn_idx, variant in enumerate(variants)
            ]

    async def _compare(self, reference: MeasuredStack, variant: Variant, turn_idx: int) -> Pairs:
        pairs = Pairs(variant)
        async with self._started(variant.mode) as other:
            for round_idx in range(self.num_rounds):
                salt = f"ablation {variant.name} {round_idx}"
                self.report(f"without {variant.name}: round {round_idx + 1} of {self.num_rounds}")
                is_reference_first = is_first_first(round_idx, turn_idx)
                if is_reference_first:
                    pairs.with_all.append(await reference.run(self.workload, salt))
                pairs.without.append(await other.run(self.workload, salt))
                if not is_reference_first:
                    pairs.with_all.append(await reference.run(self.workload, salt))
        return pairs

    @contextlib.asynccontextmanager
    async def _started(self, mode: Mode) -> AsyncIterator[MeasuredStack]:
        """Run a stack that has answered some requests while a block does."""
        async with started_stack(mode, self.interruption) as url:
            bus = await NatsBus.connect(url, "bench-ablation", operator_access(url))
            try:
                stack = MeasuredStack(mode.name, LoadClient(bus), bus)
                await stack.run(self.workload, "warm-up", _NUM_WARMUP_REQUESTS)
                yield stack
            finally:
                await bus.close()
