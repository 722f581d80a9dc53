"""Feed one decoder: count, time, and keep the inputs at which it did what it never may."""

import gc
import mmap
import random
import resource
import struct
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .mutation import MAX_BYTES, Mutator
from .target import Target
from .trees import TreeMutator

# Of which target, how many inputs have begun, how long the one is that runs; then the input itself.
HEADER = struct.Struct("<IQI")
BOARD_BYTES = HEADER.size + 4 * MAX_BYTES
MAX_DEFECTS = 4  # of one decoder: the next ones are mostly the same again
_MEASURED_INPUTS = 500  # fewer say nothing of what grows
_PAGE = resource.getpagesize()


@dataclass
class Defect:
    """An input and what came of it."""

    what: str
    payload: bytes


@dataclass
class Outcome:
    """What became of one decoder's inputs."""

    name: str
    num_inputs: int = 0
    num_refused: int = 0
    num_accepted: int = 0
    slowest_ms: float = 0.0  # of the processor's time: others may have it meanwhile
    rss_growth_kib: int = 0
    duration_s: float = 0.0
    defects: list[Defect] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON holds it. Any: as said."""
        defects = [{"what": each.what, "payload": each.payload.hex()} for each in self.defects]
        return asdict(self) | {"defects": defects}


class Board:
    """Where a process writes what it does, for whoever finds it dead or stuck."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), BOARD_BYTES)

    def note(self, target: int, number: int, payload: bytes) -> None:
        """Write down which input runs now."""
        HEADER.pack_into(self._map, 0, target, number, len(payload))
        self._map[HEADER.size : HEADER.size + len(payload)] = payload

    def read(self) -> tuple[int, int, bytes]:
        """Return target, number and input that were noted last."""
        target, number, size = HEADER.unpack_from(self._map)
        return target, number, self._map[HEADER.size : HEADER.size + size]


def inputs_of(target: Target, seed: int) -> "Inputs":
    """Return an endless source of inputs; the same seed gives the same ones."""
    return Inputs(target, random.Random(f"{target.name} {seed}"))


class Inputs:
    """Samples that were damaged: their bytes, or values inside them."""

    def __init__(self, target: Target, random_: random.Random) -> None:
        self._random = random_
        self._samples = [*target.samples, *target.corpus]
        self._whole = list(target.samples)
        self._bytes = Mutator(random_, target.words)
        self._trees = None if target.form == "bytes" else TreeMutator(random_, target.form)

    def next(self) -> bytes:
        """Return the next input."""
        if self._trees is not None and self._random.random() < 0.6:
            sample, other = self._random.choice(self._whole), self._random.choice(self._whole)
            return self._trees.mutate(sample, other)[: 2 * MAX_BYTES]
        sample, other = self._random.choice(self._samples), self._random.choice(self._samples)
        return self._bytes.mutate(sample, other)


def feed(target: Target, position: int, num_inputs: int, seed: int, board: Board) -> Outcome:
    """Give a decoder so many inputs, those first that once found something."""
    outcome = Outcome(target.name)
    known = [*target.samples, *target.corpus]
    source, is_long = inputs_of(target, seed), num_inputs >= _MEASURED_INPUTS
    began_s, warm_at, rss_before = time.monotonic(), len(known) + num_inputs // 5, 0
    for number in range(len(known) + num_inputs):
        if number == warm_at and is_long:
            rss_before = _rss_kib()
        payload = known[number] if number < len(known) else source.next()
        board.note(position, number, payload)
        _try(target, payload, outcome)
        if len(outcome.defects) >= MAX_DEFECTS:
            break
    if is_long and not outcome.defects:
        outcome.rss_growth_kib = _rss_kib() - rss_before
    outcome.duration_s = time.monotonic() - began_s
    return outcome


def _try(target: Target, payload: bytes, outcome: Outcome) -> None:
    began = time.process_time()
    outcome.num_inputs += 1
    try:
        target.decode(payload)
        outcome.num_accepted += 1
    except target.refusals as refusal:
        outcome.num_refused += 1
        if not str(refusal):
            _keep(outcome, "refused without a word", payload)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a library's panic is no Exception
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        _keep(outcome, f"{type(error).__name__} at {place}: {str(error)[:160]}", payload)
    took_s = time.process_time() - began
    outcome.slowest_ms = max(outcome.slowest_ms, took_s * 1000)
    if took_s > target.cpu_limit_s:
        _keep(outcome, f"took longer than {target.cpu_limit_s:g} s", payload)


def _keep(outcome: Outcome, what: str, payload: bytes) -> None:
    """Keep the first input of each kind."""
    if what[:60] not in (each.what[:60] for each in outcome.defects):
        outcome.defects.append(Defect(what, payload))


def _rss_kib() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE // 1024
