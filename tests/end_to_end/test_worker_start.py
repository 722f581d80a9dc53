"""Workers start light: soon, without torch, on weights that all of them share."""

import asyncio
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from slipstream.shared.model.store import default_cache_dir
from slipstream.shared.worker.engine import PAUSE_S

from . import client, stack

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(240)]

StartStack = Callable[..., stack.Stack]
_NUM_WORKERS = 3
# Of one worker's memory, what three take together: 1.35 is measured. The imports of Python, numpy
# and the NATS client are nearly all of what isn't shared; see docs/benchmarks.md.
_MAX_RATIO = 1.4
_READY_S = 1.0
_NUM_STARTS = 4  # other tests' processes slow some of them down
_WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class Memory:
    """What a process holds without the arena; shared pages are divided among who maps them."""

    num_bytes: int
    num_weight_bytes: int


@pytest.fixture
def variables(tmp_path: Path, packed_int8: None) -> dict[str, str]:
    """A cache that no other process maps, and an interpreter that finds no torch."""
    shared = Path(os.environ.get("SLIPSTREAM_CACHE_DIR") or default_cache_dir())
    cache_dir, blocked_dir = tmp_path / "cache", tmp_path / "blocked"
    cache_dir.mkdir()
    (cache_dir / "models").symlink_to(shared / "models")
    shutil.copytree(shared / "vocabularies", cache_dir / "vocabularies")
    for packed in (shared / "packed").glob("[!.]*-int8-*"):
        shutil.copytree(packed, cache_dir / "packed" / packed.name)
    blocked_dir.mkdir()
    for name in ("torch", "transformers"):
        (blocked_dir / f"{name}.py").write_text("raise ImportError('it is not to be imported')\n")
    # Compiled at each start, our own modules would leave megabytes behind.
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled")}
    return {"SLIPSTREAM_CACHE_DIR": str(cache_dir), "PYTHONPATH": str(blocked_dir), **compiled}


@pytest.mark.slow
async def test_three_workers_take_little_more_memory_than_one(
    start_stack: StartStack, variables: dict[str, str]
) -> None:
    await _memory_of_decode_workers(start_stack, 1, variables)  # compiles what is imported
    (alone,) = await _memory_of_decode_workers(start_stack, 1, variables)
    together = await _memory_of_decode_workers(start_stack, _NUM_WORKERS, variables)

    assert _NUM_WORKERS == len(together)
    # Pages that several processes map are divided among them: all workers together hold one copy.
    num_weight_bytes = sum(each.num_weight_bytes for each in together)
    assert num_weight_bytes == pytest.approx(alone.num_weight_bytes, rel=0.05)
    assert sum(each.num_bytes for each in together) <= _MAX_RATIO * alone.num_bytes


def test_a_worker_is_ready_within_a_second(
    start_stack: StartStack, variables: dict[str, str]
) -> None:
    """On weights that are packed, beside a KV manager that is there: as after a crash."""
    running = start_stack(_arguments(1), variables)

    starts = []
    for num_started in range(1, _NUM_STARTS):
        running.wait_restarted("decode", running.kill("decode"))
        waited_s = _waited_for_a_core_s(running.pid("decode"))
        # The supervisor sees it a moment after we do.
        assert stack.wait_until(lambda count=num_started: len(_start_times(running)) > count, 5)
        starts.append(_start_times(running)[-1] - waited_s)

    assert min(starts) < _READY_S, starts
    assert 0 == running.stop()


def _arguments(num_workers: int) -> list[str]:
    workers = ["--prefill", "0", "--draft", "0", "--decode", str(num_workers)]
    return [*workers, "--kv-memory", "256MiB", "--format", "int8"]


async def _memory_of_decode_workers(
    start_stack: StartStack, num_workers: int, variables: dict[str, str]
) -> list[Memory]:
    """Return what each decode worker holds when all have computed and paused."""
    running = start_stack(_arguments(num_workers), variables)
    async with client.connected(running.nats_url) as connected:
        await asyncio.gather(
            *(
                connected.ask(
                    {"prompt": "one two three " * 5, "max_tokens": 24, "ignore_eos": True}
                )
                for _ in range(8 * num_workers)
            )
        )
    await asyncio.sleep(2 * PAUSE_S)
    names = ["decode"] if num_workers == 1 else [f"decode-{i + 1}" for i in range(num_workers)]
    pids = [running.pid(name) for name in names]
    found = [_memory_of(pid) for pid in pids]
    assert 0 == running.stop()
    return found


def _memory_of(pid: int) -> Memory:
    by_name: dict[str, int] = {}
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            name = Path(line).name
            assert not re.search(r"/(torch|transformers|tokenizers)/", line), "not to be loaded"
        elif line.startswith("Pss:"):
            by_name[name] = by_name.get(name, 0) + int(line.split()[1]) * 1024
    arenas = sum(size for name, size in by_name.items() if name.startswith("arena."))
    return Memory(sum(by_name.values()) - arenas, by_name.get(_WEIGHTS, 0))


def _waited_for_a_core_s(pid: int) -> float:
    """Return how long a process could have run but others did."""
    _, waited_ns, _ = Path(f"/proc/{pid}/schedstat").read_text(encoding="utf-8").split()
    return int(waited_ns) / 1e9


def _start_times(running: stack.Stack) -> list[float]:
    """Return how long each start of the decode worker took, as its supervisor saw it."""
    found = (re.search(r"decode is ready \((\d+\.\d) s\)", line) for line in list(running.lines))
    return [float(each[1]) for each in found if each]
