"""The load generator: sends what is due when it is due, and notes when what comes back came."""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter

from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.endpoint import call
from slipstream.shared.bus.subjects import CANCEL, GENERATE, last_token
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import RequestId
from slipstream.shared.measure.load.arrivals import Arrival, Arrivals
from slipstream.shared.measure.load.load import Load
from slipstream.shared.measure.load.requests import PlannedRequest
from slipstream.shared.measure.load.samples import LoadRun, Sample
from slipstream.shared.messages.codec import (
    ClientAnswer,
    decode_batch,
    decoder_of,
    encode,
    is_array,
)
from slipstream.shared.messages.common import Accepted, Failed
from slipstream.shared.messages.generate import Cancel, Finished, GenerateRequest, TokenFrame

_CANCEL_S = 1.0
_BATCHES = "batches"  # requests have numbers for names
_CLEAN_S = 5.0  # what the endings of cancelled requests may take


class LoadClient:
    """
    Runs loads through a stack, one after another.

    One subscription serves all requests of a run, and frames of a step come together, as to the
    gateway and the client library. They are kept as they come, and decoded when the run is over:
    what the client computes meanwhile it takes away from what it measures.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._num_runs = 0

    async def run(self, load: Load, cache_salt: str) -> LoadRun:
        """Return all samples; requests that are not answered by the load's end are cancelled."""
        self._num_runs += 1
        run = _Run(self._bus, load, f"{cache_salt} {self._num_runs}")
        subscription = await self._bus.subscribe(f"{run.inbox}.*", run.take)
        try:
            await run.drive()
            await run.clean_up()
        finally:
            await subscription.stop()
        return run.result()


class _Run:
    def __init__(self, bus: Bus, load: Load, cache_salt: str) -> None:
        self.inbox = bus.new_inbox()
        self._bus = bus
        self._load = load
        self._cache_salt = cache_salt
        self._arrivals: Arrivals = load.arrivals()
        self._samples: dict[int, Sample] = {}
        self._in_flight: set[int] = set()
        self._frames: dict[int, list[tuple[float, bytes]]] = defaultdict(list)
        self._batches: list[tuple[float, bytes]] = []
        self._request_ids: dict[int, RequestId] = {}
        self._changed = asyncio.Event()
        self._cpu: list[tuple[float, float]] = []  # time and CPU seconds at the window's edges
        self._began_s = time.perf_counter()

    async def drive(self) -> None:
        """Send all that comes due and return when it is answered, or the load gives up."""
        edges = [self._load.warmup_s, self._load.end_s]
        self._began_s = time.perf_counter()
        while (now_s := self._now_s()) < self._load.give_up_s:
            if len(self._cpu) < len(edges) and now_s >= edges[len(self._cpu)]:
                self._cpu.append((now_s, time.process_time()))
            for arrival in self._arrivals.due(now_s):
                await self._send(arrival)
            next_at_s = self._arrivals.next_at_s
            if next_at_s is None and not self._in_flight and now_s >= self._load.end_s:
                return
            moments = [*edges[len(self._cpu) :], self._load.give_up_s]
            if next_at_s is not None:
                moments.append(next_at_s)
            await self._sleep_until(min(moments))

    async def clean_up(self) -> None:
        """Cancel what has not ended, and wait for the endings: the next run must not meet them."""
        cut = frozenset(self._in_flight)
        await asyncio.gather(*(self._cancel(number) for number in cut))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLEAN_S):
                while self._in_flight:
                    self._changed.clear()
                    await self._changed.wait()
        for number in cut:
            self._samples[number].ended_s = None

    def result(self) -> LoadRun:
        """Decode the frames and return what was seen."""
        for at_s, batch in self._batches:
            for each in decode_batch(batch):
                self._frames[int(each.box)].append((at_s, bytes(each.frame)))
        for number, frames in self._frames.items():
            frames.sort(key=itemgetter(0))
            sample = self._samples[number]
            sample.arrivals, sample.token_ids = _arrivals_of(frames)
        share = 0.0
        if len(self._cpu) > 1:
            (began_s, began_cpu_s), (ended_s, ended_cpu_s) = self._cpu
            share = (ended_cpu_s - began_cpu_s) / (ended_s - began_s)
        samples = list(self._samples.values())
        return LoadRun(samples, self._load.warmup_s, self._load.end_s, share)

    async def take(self, incoming: Incoming) -> None:
        """Note what came; only endings are looked at now."""
        now_s = self._now_s()
        name = last_token(incoming.subject)
        if name == _BATCHES:
            self._batches.append((now_s, incoming.payload))
            return
        number = int(name)
        if number not in self._in_flight:
            return
        if incoming.is_no_responders:
            self._end(number, now_s, f"nobody serves {GENERATE.subject()}")
        elif is_array(incoming.payload):
            self._frames[number].append((now_s, incoming.payload))
        else:
            self._take_control(number, now_s, decoder_of(ClientAnswer).decode(incoming.payload))

    def _take_control(self, number: int, now_s: float, message: object) -> None:
        match message:
            case Accepted():
                self._request_ids[number] = message.request_id
            case Finished():
                sample = self._samples[number]
                sample.queue_ms = message.timings.queue_ms
                sample.num_cached_tokens = message.usage.num_cached_tokens
                self._end(number, now_s, None)
            case Failed():
                self._end(number, now_s, f"{message.code}: {message.message}")
            case _:
                self._end(number, now_s, f"a stream holds no {type(message).__name__}")

    def _end(self, number: int, now_s: float, error: str | None) -> None:
        sample = self._samples[number]
        sample.ended_s = now_s
        sample.error = error
        self._in_flight.discard(number)
        self._arrivals.ended(now_s)
        self._changed.set()

    async def _send(self, arrival: Arrival) -> None:
        number = arrival.number
        request = self._load.request(number)
        payload = encode(self._message(request))
        self._in_flight.add(number)
        sample = Sample(request, arrival.at_s, self._now_s())
        self._samples[number] = sample
        await self._bus.publish(GENERATE.subject(), payload, reply=f"{self.inbox}.{number}")
        sample.sent_s = self._now_s()

    def _message(self, request: PlannedRequest) -> GenerateRequest:
        return GenerateRequest(
            prompt_token_ids=request.token_ids,
            stream=True,
            batch_inbox=f"{self.inbox}.{_BATCHES}",
            temperature=request.temperature,
            seed=request.seed,
            ignore_eos=True,
            max_tokens=request.num_output_tokens,
            speculation=request.speculation,
            deadline_ms=self._deadline_ms(),
            # The same prompts in each run, and yet nothing of them is cached.
            cache_salt=self._cache_salt,
            tenant=request.tenant,
            latency_class=request.latency_class,
        )

    def _deadline_ms(self) -> int | None:
        """Return a deadline for runs longer than the default one: any waives the class's own."""
        needed_ms = round(self._load.give_up_s * 1000) + 1000
        if needed_ms <= SchedulerConfig.default_deadline_ms:
            return None
        return min(SchedulerConfig.max_deadline_ms, needed_ms)

    async def _cancel(self, number: int) -> None:
        request_id = self._request_ids.get(number)
        if request_id is None:
            return
        with contextlib.suppress(SlipstreamError):
            message = Cancel(request_id=request_id)
            await call(self._bus, CANCEL, message, timeout_s=_CANCEL_S, request_id=request_id)

    async def _sleep_until(self, at_s: float) -> None:
        """Return at a moment, or as soon as a request has ended."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, at_s - self._now_s())):
                await self._changed.wait()

    def _now_s(self) -> float:
        return time.perf_counter() - self._began_s


def _arrivals_of(
    frames: Sequence[tuple[float, bytes]],
) -> tuple[list[tuple[float, int]], list[int]]:
    """Return when which tokens came: each once, though another attempt may say them again."""
    decoded = (decoder_of(ClientAnswer).decode(payload) for _, payload in frames)
    found: list[tuple[float, int]] = []
    token_ids: list[int] = []
    for (at_s, _), frame in zip(frames, decoded, strict=True):
        assert isinstance(frame, TokenFrame), "nothing else is an array"
        num_new = frame.index + len(frame.token_ids) - len(token_ids)
        if num_new > 0:
            found.append((at_s, num_new))
            token_ids += frame.token_ids[-num_new:]
    return found, token_ids
