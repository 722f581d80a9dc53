"""
Measure the engine alone: plain torch, native float32 and native int8, in one interleaved run.

For example:

    python bench/engine.py --threads 2 --rounds 9 --json FILE
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from estimate import Estimate, report, table

from slipstream.kernels.cpu.loader import load
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.config import load_config, model_fingerprint
from slipstream.shared.model.native_runner import NativeRunner
from slipstream.shared.model.packed_weights import open_packed
from slipstream.shared.model.runner import ModelRunner, SequenceRows
from slipstream.shared.model.store import default_cache_dir, resolve_model
from slipstream.shared.model.torch_runner import TorchRunner

_CONTEXT = 540
_BLOCKS_EACH = 18
_MAX_BATCH = 32
_PROMPT = 512


def main() -> None:
    """Parse the options, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2, help="threads of every engine")
    parser.add_argument("--rounds", type=int, default=9, help="samples a cell")
    parser.add_argument("--json", type=Path, help="write samples and figures here")
    options = parser.parse_args()
    engines = _open_engines(options.model, options.threads)
    samples = _measure(engines, options.rounds)
    estimates = [Estimate.of(name, values) for name, values in samples.items()]
    print(table(estimates))  # noqa: T201 - what the program is for
    if options.json is not None:
        settings = {"model": options.model, "threads": options.threads, "rounds": options.rounds}
        options.json.write_text(json.dumps(report(estimates, settings), indent=1))


def _open_engines(model: str, num_threads: int) -> dict[str, ModelRunner]:
    cache_dir = default_cache_dir()
    directory = resolve_model(model, cache_dir, report=_say)
    config, fingerprint = load_config(directory), model_fingerprint(directory)
    num_blocks = _MAX_BATCH * _BLOCKS_EACH + 1

    def native(weight_format: str, kv_format: str) -> ModelRunner:
        packed = open_packed(directory, config, fingerprint, weight_format, cache_dir, report=_say)
        layout = _layout(kv_format)
        arena = np.zeros(layout.block_bytes * num_blocks, np.uint8)
        return NativeRunner(load(), packed, config, memoryview(arena), layout, num_threads)

    def _layout(kv_format: str) -> KvLayout:
        return KvLayout(config.num_layers, config.num_kv_heads, config.head_dim, dtype=kv_format)

    layout = _layout("float32")
    arena = bytearray(layout.block_bytes * num_blocks)
    return {
        "torch float32": TorchRunner(
            directory, config, memoryview(arena), layout, num_blocks, num_threads
        ),
        "native float32": native("float32", "float32"),
        "native int8, KV int8": native("int8", "int8"),
    }


def _say(line: str) -> None:
    print(f"==> {line}", file=sys.stderr)  # noqa: T201 - progress


def _measure(engines: dict[str, ModelRunner], num_rounds: int) -> dict[str, list[float]]:
    rng = np.random.default_rng(0)
    token_ids = rng.integers(1000, 40_000, _CONTEXT + 16).tolist()
    tables = [
        list(range(1 + _BLOCKS_EACH * i, 1 + _BLOCKS_EACH * (i + 1))) for i in range(_MAX_BATCH)
    ]
    for engine in engines.values():
        for blocks in tables:
            engine.forward([_rows(token_ids[:_CONTEXT], 0, blocks, 1)])
    cells: dict[str, Callable[[ModelRunner], object]] = {
        f"prefill {_PROMPT}": lambda engine: engine.forward(
            [_rows(token_ids[:_PROMPT], 0, tables[0], 1)]
        )
    }
    for batch in (1, 8, _MAX_BATCH):
        cells[f"decode, batch {batch}, context {_CONTEXT}"] = lambda engine, batch=batch: (
            engine.forward(
                [_rows(token_ids[: _CONTEXT + 1], _CONTEXT, tables[i], 1) for i in range(batch)]
            )
        )
    for num_rows in (4, 8, 16):
        cells[f"verify {num_rows} rows, context {_CONTEXT}"] = lambda engine, num_rows=num_rows: (
            engine.forward([_rows(token_ids[: _CONTEXT + num_rows], _CONTEXT, tables[0], num_rows)])
        )
    samples: dict[str, list[float]] = {}
    for round_idx in range(num_rounds + 1):
        for cell, run in cells.items():
            for name, engine in engines.items():
                started = time.perf_counter()
                run(engine)
                if round_idx:  # the first warms up
                    elapsed = (time.perf_counter() - started) * 1000
                    samples.setdefault(f"{cell}: {name}", []).append(elapsed)
    return samples


def _rows(
    token_ids: list[int], num_computed: int, table: list[int], num_logits: int
) -> SequenceRows:
    return SequenceRows(token_ids, num_computed, len(token_ids) - num_computed, table, num_logits)


if __name__ == "__main__":
    main()
