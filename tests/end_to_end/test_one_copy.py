"""On one host a hand-over moves no KV: memory shows one copy, that both workers have mapped."""

import hashlib
import mmap
import random
from pathlib import Path
from typing import Any

import pytest

from . import client, conftest, proc_memory, stack

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(240)]

_BLOCK_SIZE = 32
_NUM_PROMPT_TOKENS = 1200
_NUM_TOKENS = 8
_NUM_BLOCKS = -(-(_NUM_PROMPT_TOKENS + _NUM_TOKENS - 1) // _BLOCK_SIZE)  # nothing reads the last
_NUM_PROMPTS = 3
_ARENA = r"/arena\.\d+"
_READERS = ("prefill", "decode")
# Pages are mapped in groups around the one that is touched, and either worker needs room for
# something else as well: much less than half of a second copy.
_SLACK = 0.25


async def test_the_kv_of_a_prompt_that_was_handed_over_is_in_memory_once(
    start_stack: conftest.StartStack, packed_float32: None
) -> None:
    running = start_stack(["--kv-memory", "256MiB", "--format", "float32"])
    async with client.connected(running.nats_url) as asking:
        # What a worker makes with its first prompts isn't this prompt's.
        for number in range(1, _NUM_PROMPTS):
            await asking.ask(_request(f"warm {number}"))
        before = _memory(running)
        answer = await asking.ask(_request("long"))
        after = _memory(running)
        books = await asking.idle_audit()
        (arena,) = (running.run_dir / "arena").glob("arena.*")
        contents = _contents(arena, books["num_blocks"] + 1)

    assert _NUM_TOKENS == len(client.token_ids_of(answer))
    assert 0 == answer["usage"].get("num_cached_tokens", 0)
    (inode,) = set.union(*(set(each.inodes) for each in after.values()))
    assert inode
    assert all(each.is_shared for each in after.values())

    # Neither is another block of the arena a copy.
    assert len(contents) == len(set(contents)) == _NUM_PROMPTS * _NUM_BLOCKS
    num_kv = _num_kv_bytes(arena, books["num_blocks"] + 1)
    for name in _READERS:
        touched = after[name].num_touched - before[name].num_touched
        assert (1 - _SLACK) * num_kv < touched, f"the {name} worker read the KV elsewhere"
    in_arena = sum(after[name].num_proportional - before[name].num_proportional for name in after)
    assert (1 - _SLACK) * num_kv < in_arena < (1 + _SLACK) * num_kv
    outside = {name: after[name].num_private - before[name].num_private for name in after}
    assert max(outside.values()) < _SLACK * num_kv, outside


def _request(name: str) -> dict[str, Any]:  # Any: fields of a request
    choices = random.Random(name)
    prompt = [choices.randrange(300, 40_000) for _ in range(_NUM_PROMPT_TOKENS)]
    return {
        "prompt_token_ids": prompt,
        "route": "remote",
        "temperature": 0,
        "ignore_eos": True,
        "max_tokens": _NUM_TOKENS,
    }


def _memory(running: stack.Stack) -> dict[str, proc_memory.Memory]:
    names = ("kv", *_READERS)
    return {name: proc_memory.memory_of(running.pid(name), _ARENA) for name in names}


def _num_kv_bytes(arena: Path, num_blocks: int) -> int:
    """Return how many bytes the KV of the long prompt's tokens takes."""
    return _block_bytes(arena, num_blocks) * (_NUM_PROMPT_TOKENS + _NUM_TOKENS) // _BLOCK_SIZE


def _contents(arena: Path, num_blocks: int) -> list[bytes]:
    """Return a digest of each block of the arena that holds anything."""
    size = _block_bytes(arena, num_blocks)
    found = []
    with arena.open("rb") as file:
        file.seek(arena.stat().st_size - num_blocks * size)
        for _ in range(num_blocks):
            block = file.read(size)
            if any(memoryview(block).cast("Q")):
                found.append(hashlib.sha256(block).digest())
    return found


def _block_bytes(arena: Path, num_blocks: int) -> int:
    # Whole pages; a header and a table of a few pages come before the blocks.
    return arena.stat().st_size // num_blocks // mmap.PAGESIZE * mmap.PAGESIZE
