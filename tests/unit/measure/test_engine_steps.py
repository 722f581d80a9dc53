"""What is timed beside what, which bytes a step reads, and the rows that come out."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from slipstream.services.cli.bench_plot import plot
from slipstream.services.cli.bench_report import as_json, fusion_table, roofline_table, rows_of
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.measure.engine_cells import Workload, decode, prefill
from slipstream.shared.measure.engine_steps import StepResult, measure
from slipstream.shared.measure.engines import Engine, EngineFormat, weight_bytes_of
from slipstream.shared.measure.estimate import Estimate
from slipstream.shared.measure.measured_machine import (
    MeasuredMachine,
    PeakSamples,
    Reader,
    Stream,
    readers,
)
from slipstream.shared.model.packed_file import Array, PackedFile, write_packed
from slipstream.shared.model.packing import named, pack_float32, pack_int8
from slipstream.shared.model.runner import SequenceRows

_FIELDS = (
    *("format", "kv_format", "batch", "prefill_tok_s", "decode_tok_s", "step_ms"),
    *("bytes_per_step", "stream_gb_s", "roofline_fraction", "context", "fused"),
)
_CELLS = [prefill(33), decode(1, 40), decode(2, 40)]
_FORMATS = [EngineFormat("float32", "float32"), EngineFormat("int8", "int8")]


class StandInMachine:
    """Notes what is read; reads a megabyte a millisecond, and twice that with prefetching."""

    level = "none"
    num_threads = 2

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def readable(self, num_bytes: float) -> int:
        return int(num_bytes) // 64 * 64

    def read_ms(self, num_bytes: float) -> dict[Reader, float]:
        self.log.append(f"read {int(num_bytes)}")
        return {Reader(1, 0): num_bytes / 1e6, Reader(2, 4096): num_bytes / 2e6}

    def operations_per_s(self, _: str) -> float:
        return 1e12


class StandInRunner:
    """Notes its steps."""

    vocab_size = 300
    num_forwards = 0
    numerics = "none"

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def forward(self, batch: Sequence[SequenceRows]) -> npt.NDArray[np.float32]:
        self.log.append(f"{self.name} {len(batch)} x {batch[0].num_rows}")
        return np.zeros((len(batch), 300), np.float32)

    def close(self) -> None: ...


def measured(num_rounds: int, log: list[str]) -> tuple[list[StepResult], PeakSamples]:
    engines = [Engine(each, StandInRunner(each.weights, log), 10**6, 1000) for each in _FORMATS]
    machine = cast("MeasuredMachine", StandInMachine(log))
    workload = Workload(_CELLS, 300)
    return measure(engines, _CELLS, workload, machine, num_rounds, report=lambda _: None)


def test_engines_and_readers_take_turns_within_each_round() -> None:
    """Steps follow others like them, which are not timed; readers stand beside decode steps."""
    log: list[str] = []
    measured(2, log)

    round_of_all = [
        *(2 * ["float32 1 x 33"] + 2 * ["int8 1 x 33"]),
        *(9 * ["float32 1 x 1"] + ["read 1040000"] + 9 * ["int8 1 x 1"] + ["read 1040000"]),
        *(9 * ["float32 2 x 1"] + ["read 1080000"] + 9 * ["int8 2 x 1"] + ["read 1080000"]),
    ]
    assert 3 * round_of_all == log


def test_the_first_round_is_not_counted() -> None:
    results, peaks = measured(2, [])

    assert {2} == {len(result.step_ms.samples) for result in results}
    assert {2} == {len(each.samples) for each in peaks.estimates().values()}


def test_a_row_holds_the_promised_fields_and_they_agree() -> None:
    results, _ = measured(3, [])

    rows = rows_of(results)

    places = [(row["format"], row["batch"], row["context"]) for row in rows]
    assert [(name, batch, 40) for name in ("float32", "int8") for batch in (1, 2)] == places
    for row in rows:
        assert set(_FIELDS) <= row.keys()
        assert 10**6 + row["batch"] * 40 * 1000 == row["bytes_per_step"]
        assert pytest.approx(2.0) == row["stream_gb_s"]
        assert "2 threads, 4 KiB ahead" == row["stream_reader"]
        assert pytest.approx(row["batch"] * 1000) == row["decode_tok_s"] * row["step_ms"]
        reading_ms = row["bytes_per_step"] / row["stream_gb_s"] / 1e6
        assert pytest.approx(reading_ms / row["step_ms"]) == row["roofline_fraction"]
        for name in ("prefill_tok_s", "decode_tok_s", "step_ms", "stream_gb_s"):
            assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"], name
        assert True is row["fused"]


def test_what_is_written_is_json_with_every_sample() -> None:
    results, peaks = measured(3, [])
    machine = cast("MeasuredMachine", StandInMachine([]))

    written = json.loads(json.dumps(as_json(results, machine, peaks.estimates(), {"rounds": 3})))

    assert {"level", "num_threads", "peak_gop_s", "processor"} <= written["machine"].keys()
    assert 1000.0 == written["machine"]["peak_gop_s"]["int8"]["median"]
    assert ["prefill", "decode", "decode"] * 2 == [cell["phase"] for cell in written["cells"]]
    assert {3} == {len(cell["step_ms_samples"]) for cell in written["cells"]}
    assert [0, 4096] == [each["prefetch_bytes"] for each in written["cells"][1]["readers"]]


def test_the_table_has_a_line_for_each_row() -> None:
    rows = rows_of(measured(1, [])[0])

    lines = roofline_table(rows).splitlines()

    assert 1 + len(rows) == len(lines)
    assert 1 == len({len(line) for line in lines})


def step_of(*step_ms: float, weights: str = "int8", is_fused: bool = True) -> StepResult:
    estimate = Estimate.of("step", step_ms)
    engine_format = EngineFormat(weights, "int8", is_fused=is_fused)
    return StepResult(engine_format, decode(8, 540), 64, 64, estimate, None)


def test_what_fusing_gains_stands_in_a_table() -> None:
    """Of steps that ran both ways; samples of one round are a pair."""
    results = [
        *(step_of(1.0, 2.0, 4.0), step_of(3.0, 6.0, 12.0, is_fused=False)),
        *(step_of(1.0, weights="float32"), step_of(1.0, weights="torch", is_fused=False)),
    ]

    _, line = fusion_table(results).splitlines()

    assert line.startswith("decode, batch 8, context 540: int8, KV int8 ")
    assert ["3.00", "3.00", "to", "3.00"] == line.split()[-4:]


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = rows_of(measured(2, [])[0])

    plot(rows, tmp_path / "steps.png")

    assert (tmp_path / "steps.png").read_bytes().startswith(b"\x89PNG")


def test_readers_are_plain_and_prefetching_with_one_and_all_threads() -> None:
    found = readers(2)

    assert {1, 2} == {reader.num_threads for reader in found}
    assert {0, 1024, 4096, 16384} <= {reader.prefetch_bytes for reader in found}
    assert {1} == {reader.num_threads for reader in readers(1)}


def test_the_fastest_reader_is_what_the_machine_can_do() -> None:
    samples = {Reader(1, 0): [4.0, 4.0], Reader(2, 0): [2.0, 2.0], Reader(2, 1024): [3.0, 3.0]}

    stream = Stream.of(10**6, samples)

    assert Reader(2, 0) == stream.best
    assert pytest.approx(5e8) == stream.bytes_per_s


def packed_file(path: Path, parts: dict[str, Array]) -> PackedFile:
    write_packed(path, parts, {"format": "int8"})
    return PackedFile(path)


def test_a_step_reads_all_of_the_weights_but_an_embedding_that_is_looked_up(
    tmp_path: Path,
) -> None:
    """
    Two matrices by hand.

    A: 48 outputs, padded to 64, of 128 inputs, int8: a byte each, a scale and two sums (4 bytes)
    an output, the order of the inputs. B: 32 x 64 in float32.
    """
    codes = np.ones((48, 128), np.int8)
    order = np.arange(128, dtype=np.int32)
    parts: dict[str, Any] = {  # Any: arrays of every type
        **named("a", pack_int8(codes, np.ones(48, np.float32), order)),
        **named("b", pack_float32(np.ones((32, 64), np.float32))),
        "final_norm": np.ones(64, np.float32),
        "embedding": np.ones((1000, 64), np.float32),
    }

    found = weight_bytes_of(packed_file(tmp_path / "weights", parts))

    by_hand = 64 * 128 + 3 * 4 * 64 + 4 * 128
    assert by_hand + 4 * 32 * 64 + 4 * 64 == found


def test_a_step_reads_the_positions_of_every_sequence() -> None:
    """3 KV heads of 64 in 2 layers, keys and values: 768 bytes, and a scale of 4 for each head."""
    layout = KvLayout(2, 3, 64, dtype="int8")
    engine = Engine(_FORMATS[1], StandInRunner("int8", []), 5000, layout.bytes_per_token)

    assert 5000 + 8 * 540 * (768 + 2 * 2 * 3 * 4) == engine.num_bytes(decode(8, 540))


def test_a_fraction_is_certain_where_steps_and_readers_slow_down_together() -> None:
    stream = Stream.of(64, {Reader(1, 0): [1.0, 2.0, 4.0]})
    step_ms = Estimate.of("step", [2.0, 4.0, 8.0])
    result = StepResult(_FORMATS[0], decode(1, 1), 64, 64, step_ms, stream)

    found = result.roofline_fraction

    assert (0.5, 0.5, 0.5) == (found.median, found.low, found.high)
