"""
Measure how two processes that compute share the cores: a decode and a prefill worker at full load.

For example:

    python bench/sharing.py --seconds 10 --json FILE

Each way is run with both processes at once; `alone` gives each the machine for itself. Then decode
runs beside programs that compute and know of no ledger: one, and one for each core.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from slipstream.kernels.cpu.loader import load
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.config import load_config, model_fingerprint
from slipstream.shared.model.native_runner import NativeRunner
from slipstream.shared.model.packed_weights import open_packed
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.model.store import default_cache_dir, resolve_model

_ROLES = ("decode", "prefill")
_CONTEXT = 540
_BATCH = 4
_BLOCKS_EACH = 18
_PROMPT = 512
_START_S = 5.0  # what a process needs to load
_BUSY = "while True: pass"

# How a process takes cores: all threads at all times; one core of its own; the ledger.
_WAYS = ("spinning", "own core", "shared")


def main() -> None:
    """Parse the options; measure, or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        role, way, ledger, start = options.worker
        print(json.dumps(_work(options.model, role, way, ledger, float(start), options.seconds)))
        return
    rows = _measure(options.model, options.seconds)
    for row in rows:
        print(
            f"{row['way']:<11} {row['role']:<8} {row['steps_per_s']:8.1f} steps/s"
            f"  {row['fraction']:5.0%} of alone  median {row['median_ms']:7.2f} ms"
            f"  longest {row['longest_ms']:7.1f} ms"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


def _measure(model: str, seconds: float) -> list[dict[str, float | str]]:
    with tempfile.TemporaryDirectory() as directory:
        ledger = Path(directory) / "cores"
        alone = {role: _run(model, [role], "spinning", ledger, seconds)[0] for role in _ROLES}
        rows = [{"way": "alone", **alone[role]} for role in _ROLES]
        # The ledger costs nothing while nobody else computes.
        rows += [
            {"way": "shared 1", **_run(model, [role], "shared", ledger, seconds)[0]}
            for role in _ROLES
        ]
        for way in _WAYS:
            rows += [{"way": way, **each} for each in _run(model, _ROLES, way, ledger, seconds)]
        for num_others in (1, len(os.sched_getaffinity(0))):
            with _crowd(num_others):
                rows += [
                    {
                        "way": f"{way} +{num_others}",
                        **_run(model, ["decode"], way, ledger, seconds)[0],
                    }
                    for way in ("spinning", "shared")
                ]
    for row in rows:
        row["fraction"] = row["steps_per_s"] / alone[row["role"]]["steps_per_s"]
    return rows


@contextlib.contextmanager
def _crowd(num_programs: int) -> Iterator[None]:
    """Programs that compute all the time, while a block runs."""
    programs = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(num_programs)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _run(
    model: str, roles: Sequence[str], way: str, ledger: Path, seconds: float
) -> list[dict[str, float | str]]:
    start = str(time.time() + _START_S)
    command = [sys.executable, __file__, "--model", model, "--seconds", str(seconds), "--worker"]
    processes = [
        subprocess.Popen([*command, role, way, str(ledger), start], stdout=subprocess.PIPE)
        for role in roles
    ]
    return [json.loads(process.communicate(timeout=seconds + 60)[0]) for process in processes]


def _work(
    model: str, role: str, way: str, ledger: str, start: float, seconds: float
) -> dict[str, float | str]:
    cores = sorted(os.sched_getaffinity(0))
    if way == "own core":
        os.sched_setaffinity(0, {cores[_ROLES.index(role) % len(cores)]})
    runner = _open(model, 1 if way == "own core" else len(cores))
    if way == "shared" and not runner.share_cores(Path(ledger)):
        raise SystemExit("cores can't be shared here")
    token_ids = np.random.default_rng(0).integers(1000, 40_000, _CONTEXT + 1).tolist()
    tables = [list(range(1 + _BLOCKS_EACH * i, 1 + _BLOCKS_EACH * (i + 1))) for i in range(_BATCH)]
    for table in tables:
        runner.forward([SequenceRows(token_ids[:_CONTEXT], 0, _CONTEXT, table, 1)])
    if role == "decode":
        batch = [SequenceRows(token_ids, _CONTEXT, 1, table, 1) for table in tables]
    else:
        batch = [SequenceRows(token_ids[:_PROMPT], 0, _PROMPT, tables[0], 1)]
    time.sleep(max(0.0, start - time.time()))
    samples = []
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        runner.forward(batch)
        samples.append((time.perf_counter() - started) * 1000)
        time.sleep(0.0003)  # what a worker does between steps
    return {
        "role": role,
        "steps_per_s": len(samples) / seconds,
        "median_ms": statistics.median(samples),
        "longest_ms": max(samples),
    }


def _open(model: str, num_threads: int) -> NativeRunner:
    cache_dir = default_cache_dir()
    directory = resolve_model(model, cache_dir, report=lambda _line: None)
    config = load_config(directory)
    packed = open_packed(
        directory,
        config,
        model_fingerprint(directory),
        "int8",
        cache_dir,
        report=lambda _line: None,
    )
    layout = KvLayout(config.num_layers, config.num_kv_heads, config.head_dim, dtype="int8")
    arena = np.zeros(layout.block_bytes * (_BATCH * _BLOCKS_EACH + 1), np.uint8)
    return NativeRunner(load(), packed, config, memoryview(arena), layout, num_threads)


if __name__ == "__main__":
    main()
