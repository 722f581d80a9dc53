"""
Measure what a step waits for a draft worker: a DraftJob over NATS, its DraftTokens, both codecs.

For example:

    python bench/draft_round_trip.py --sequences 1,8,32 --json FILE

A nats-server and a draft worker run as processes of their own; asked by the client of the decode
worker, which has told of the tokens of a step before each question. Every sequence has a proposal.
"""

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from results import make_parser, write_results

from slipstream.services.cli.bench_hosts import HostPlan, Hosts
from slipstream.services.decode import intake
from slipstream.services.decode.draft_policy import DraftPolicy, Offer
from slipstream.services.decode.drafts import DraftClient
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import REPORT
from slipstream.shared.config import DecodeConfig
from slipstream.shared.ids import RequestId
from slipstream.shared.measure.estimate import Estimate
from slipstream.shared.measure.load.summary import percentile
from slipstream.shared.messages.codec import decoder_of
from slipstream.shared.messages.jobs import DecodeJob, ReplyTarget
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import WorkerReport
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.detokenizer import Vocabulary
from slipstream.shared.model.vocabulary import open_vocabulary
from slipstream.shared.telemetry.tracing import Tracer
from slipstream.shared.worker.model_source import open_model

BAR_US = 450.0  # what the median may be on one host
_PERCENTS = (50, 95, 99)
_WAIT_S = 1.0  # the late are measured too, not dropped
_FOUND_S = 10.0
_PERIOD = 20  # tokens that come over and over: what looks back finds them
_NUM_PROMPT_TOKENS = 256
_NUM_NEW_TOKENS = 3  # that a step with drafts accepts
_MICROSECONDS = 1e6


class EagerPolicy(DraftPolicy):
    """Wants drafts for every sequence, whether or not they pay."""

    def lengths(
        self,
        offers: Sequence[Offer],
        streams: Sequence[DecodeSequence],  # noqa: ARG002 - as there
        *,
        ask_s: float = 0.0,  # noqa: ARG002 - as there
    ) -> list[int]:
        """Return all that there are."""
        return [offer.max_num_tokens for offer in offers]


@dataclass
class Asker:
    """A decode worker without a model: its sequences, and its client of the draft worker."""

    client: DraftClient
    model: ModelConfig
    vocabulary: Vocabulary
    num_made: int = 0
    tracer: Tracer = field(default_factory=Tracer)

    async def sequences(self, number: int) -> list[DecodeSequence]:
        """Return sequences that the draft worker knows, all in the middle of decoding."""
        made = [self._sequence() for _ in range(number)]
        await asyncio.gather(*(self.client.open(each) for each in made))
        return made

    async def ask(self, sequences: Sequence[DecodeSequence]) -> float:
        """Go on by a step and return how many seconds its proposals take. All must have one."""
        for sequence in sequences:
            for _ in range(_NUM_NEW_TOKENS):
                sequence.token_ids.append(_token_at(len(sequence.token_ids)))
            sequence.num_computed_tokens = len(sequence.token_ids) - 1
        began_s = time.perf_counter()
        proposals = await self.client.propose(sequences)
        seconds = time.perf_counter() - began_s
        assert len(proposals) == len(sequences), f"{len(proposals)} of {len(sequences)} proposals"
        return seconds

    def _sequence(self) -> DecodeSequence:
        self.num_made += 1
        span = self.tracer.start("bench")
        prompt = [_token_at(position) for position in range(_NUM_PROMPT_TOKENS)]
        job = DecodeJob(
            request_id=RequestId(f"r{self.num_made}"),
            attempt=1,
            model=self.model.name,
            prompt_token_ids=PackedInts(prompt),
            sampling=SamplingParameters(seed=0, max_tokens=1_000_000),
            reply=ReplyTarget("", is_streamed=True),
            root_span=span.context,
            attempt_span=span.context,
        )
        sequence = intake.make_sequence(job, self.model, self.vocabulary, span)
        sequence.max_num_tokens = 1_000_000  # a benchmark asks more often than a context is long
        return sequence


def _token_at(position: int) -> int:
    return 3 + position % _PERIOD


@contextlib.contextmanager
def draft_worker() -> Iterator[str]:
    """Run a NATS server and a draft worker while a block does; yield the server's address."""
    with tempfile.TemporaryDirectory(prefix="slip-") as name:
        directory = Path(name)
        plan = HostPlan(name="host", roles=("draft",))
        with Hosts(directory, [plan], {"CACHE_DIR": directory / "cache"}) as hosts:
            yield hosts.nats_url


@contextlib.asynccontextmanager
async def opened_asker(url: str, num_drafts: int) -> AsyncIterator[Asker]:
    """Yield a client that has found the draft worker."""
    with tempfile.TemporaryDirectory() as name:
        config = DecodeConfig(
            cache_dir=Path(name), arena_dir=Path(name), engine="fake", is_test_mode=True
        )
        model = open_model(config)
        vocabulary = open_vocabulary(model.directory, config.cache_dir)
        bus = await NatsBus.connect(url, "bench-draft")
        try:
            policy = EagerPolicy(num_drafts)
            is_found = asyncio.Event()
            client = DraftClient(bus, policy, _WAIT_S, model.config.vocab_size)

            async def hear(incoming: Incoming) -> None:
                report = decoder_of(WorkerReport).decode(incoming.payload)
                if report.role == "draft":
                    client.saw(report)
                    is_found.set()

            await bus.subscribe(REPORT.wildcard, hear)
            async with asyncio.timeout(_FOUND_S):
                await is_found.wait()
            yield Asker(client, model.config, vocabulary)
        finally:
            await bus.close()


async def measure(url: str, options: argparse.Namespace) -> dict[int, list[list[float]]]:
    """Return the microseconds of each question, by number of sequences and by round."""
    found: dict[int, list[list[float]]] = {number: [] for number in options.sequences}
    async with opened_asker(url, options.drafts) as asker:
        sequences = {number: await asker.sequences(number) for number in options.sequences}
        for number in options.sequences:  # the first ones are of a process that warms up
            for _ in range(options.asks // 10):
                await asker.ask(sequences[number])
        for round_idx in range(options.rounds):
            turns = options.sequences if round_idx % 2 == 0 else options.sequences[::-1]
            for number in turns:
                taken = [await asker.ask(sequences[number]) for _ in range(options.asks)]
                found[number].append([seconds * _MICROSECONDS for seconds in taken])
    return found


def rows_of(found: dict[int, list[list[float]]]) -> list[dict[str, Any]]:  # Any: JSON
    """Return a row for each number of sequences: medians over rounds, with intervals."""
    return [
        {
            "sequences": number,
            **{f"p{percent}_us": _figure(number, percent, rounds) for percent in _PERCENTS},
            "bar_us": BAR_US,
        }
        for number, rounds in found.items()
    ]


def _figure(number: int, percent: int, rounds: list[list[float]]) -> dict[str, float]:
    values = [percentile(sorted(samples), percent) for samples in rounds]
    estimate = Estimate.of(f"{number} p{percent}", values)
    return {"median": estimate.median, "low": estimate.low, "high": estimate.high}


def table(rows: Sequence[dict[str, Any]]) -> str:  # Any: as above
    """Return the rows for people."""
    lines = [f"{'sequences':>9}" + "".join(f"{f'p{percent}, us':>24}" for percent in _PERCENTS)]
    for row in rows:
        cells = [row[f"p{percent}_us"] for percent in _PERCENTS]
        texts = [f"{c['median']:.0f} ({c['low']:.0f} to {c['high']:.0f})" for c in cells]
        lines.append(f"{row['sequences']:>9}" + "".join(f"{text:>24}" for text in texts))
    return "\n".join(lines)


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("every number is at least 1")
    return numbers


def main() -> None:
    """Measure; print the table, write the file."""
    parser = make_parser(__doc__)
    parser.add_argument("--sequences", type=_numbers, default=[1, 8, 32], metavar="1,8,32")
    parser.add_argument("--drafts", type=int, default=8, help="tokens of a proposal, at most")
    parser.add_argument("--asks", type=int, default=500, help="questions of a round")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with draft_worker() as url:
        rows = rows_of(asyncio.run(measure(url, options)))
    print(table(rows))
    write_results(options, {str(row["sequences"]): row for row in rows})


if __name__ == "__main__":
    main()
