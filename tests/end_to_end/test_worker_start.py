"""Workers start light: without torch, at once, on weights that all of them share."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from . import client, stack

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(240)]

StartStack = Callable[..., stack.Stack]
_NUM_WORKERS = 3


@pytest.mark.usefixtures("packed_int8")
async def test_workers_map_the_weights_once_and_start_without_torch(
    start_stack: StartStack,
) -> None:
    (alone,) = await _weights_of_decode_workers(start_stack, 1)
    together = await _weights_of_decode_workers(start_stack, _NUM_WORKERS)

    assert _NUM_WORKERS == len(together)
    # Pages that several processes map are divided among them: all workers together hold one copy.
    assert sum(together) == pytest.approx(alone, rel=0.05)


async def _weights_of_decode_workers(start_stack: StartStack, num_workers: int) -> list[int]:
    """Return the bytes of weights that each decode worker holds when all have computed."""
    arguments = ["--prefill", "0", "--draft", "0", "--decode", str(num_workers)]
    running = start_stack([*arguments, "--kv-memory", "256MiB"])
    async with client.connected(running.nats_url) as connected:
        await asyncio.gather(
            *(
                connected.ask(
                    {"prompt": "one two three " * 5, "max_tokens": 24, "ignore_eos": True}
                )
                for _ in range(8 * num_workers)
            )
        )
    names = ["decode"] if num_workers == 1 else [f"decode-{i + 1}" for i in range(num_workers)]
    found = []
    for name in names:
        pid = running.pid(name)
        maps = _maps_of(pid)
        assert "weights.safetensors" in maps, f"{name} computes on the packed file"
        assert not re.search(r"/torch/|/transformers/", maps), f"{name} has loaded torch"
        found.append(_weight_bytes(pid))
    assert 0 == running.stop()
    return found


def _maps_of(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def _weight_bytes(pid: int) -> int:
    """Return the Pss of the packed file."""
    total, is_weights = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_weights = line.endswith("weights.safetensors")
        elif line.startswith("Pss:") and is_weights:
            total += int(line.split()[1]) * 1024
    return total
