"""Decoders on damaged input: `make fuzz` at length, a few thousand of them in every run."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.shared.errors import ProtocolError

from .__main__ import wrongs
from .catalogue import all_targets
from .loop import BOARD_BYTES, Board, feed, inputs_of
from .mutation import Mutator
from .overseer import _outcome
from .target import CORPUS, HERE, Target

TESTS = Path(__file__).parents[1]
MAX_CORPUS_BYTES = 1_000_000
NUM_INPUTS = 100  # of each decoder
GROUPS = {
    "messages": {"message", "request", "frame_batch", "stream", "transfer", "host_link"},
    "files": {"file"},
    "texts": {"http", "admission", "constraint", "grammar", "batch", "events", "otlp"},
    "variables": {"traceparent", "environment"},
}


def fuzz(*options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", "fuzz", *options],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("group", GROUPS)
def test_no_damaged_input_breaks_a_decoder(group: str, tmp_path: Path) -> None:
    """What once found something and the samples are among the inputs."""
    board = tmp_path / "board"
    board.write_bytes(bytes(BOARD_BYTES))
    targets = [each for each in all_targets() if each.name.partition(".")[0] in GROUPS[group]]
    outcomes = [feed(each, 0, NUM_INPUTS, 1, Board(board)) for each in targets]

    assert targets
    assert [] == wrongs(outcomes)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_program_prints_a_table_and_writes_figures(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    done = fuzz("--inputs", "20000", "--output", str(path))
    figures = json.loads(path.read_text(encoding="utf-8"))

    assert 0 == done.returncode, done.stdout[-2000:] + done.stderr[-4000:]
    assert "nothing was found" in done.stdout
    assert figures["num_inputs"] >= 20_000
    assert {each.name for each in all_targets()} == {each["name"] for each in figures["decoders"]}


def test_every_decoder_is_in_a_group() -> None:
    names = {each.name.partition(".")[0] for each in all_targets()}

    assert names == set().union(*GROUPS.values())


def test_what_once_found_something_belongs_to_a_decoder_and_is_small() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    names = {target.name for target in all_targets()}

    assert {path.parent.name for path in files} <= names
    assert 0 < sum(path.stat().st_size for path in files) < MAX_CORPUS_BYTES


def test_the_same_seed_makes_the_same_inputs() -> None:
    target = next(each for each in all_targets() if each.name == "request.json")
    first, again = inputs_of(target, 3), inputs_of(target, 3)

    assert [first.next() for _ in range(50)] == [again.next() for _ in range(50)]


def test_damage_changes_most_samples() -> None:
    mutator = Mutator(random.Random(1))
    made = {mutator.mutate(b"0123456789abcdef", b"XYZ") for _ in range(200)}

    assert len(made) > 150


def fails(payload: bytes) -> None:
    raise KeyError(payload.decode("latin-1"))


def is_slow(_payload: bytes) -> None:
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass


def grows(payload: bytes) -> bytes:
    return bytes(2**42)


@pytest.mark.parametrize(
    ("decode", "said"), [(fails, "KeyError"), (is_slow, "took longer"), (grows, "MemoryError")]
)
def test_what_a_decoder_may_not_do_is_found(decode: object, said: str, tmp_path: Path) -> None:
    path = tmp_path / "board"
    path.write_bytes(bytes(BOARD_BYTES))
    target = Target("x", decode, (ProtocolError,), [b"abc"], cpu_limit_s=0.02)  # type: ignore[arg-type] # one of those above
    outcome = feed(target, 0, 3, 1, Board(path))

    assert any(said in defect.what for defect in outcome.defects)


def test_a_process_that_dies_names_the_input(tmp_path: Path) -> None:
    """The board outlives whoever wrote on it."""
    path = tmp_path / "board"
    path.write_bytes(bytes(BOARD_BYTES))
    code = (
        "import os, sys; from pathlib import Path; from fuzz.loop import Board;"
        "board = Board(Path(sys.argv[1])); board.note(2, 7, b'poison'); os.abort()"
    )
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(path)], env=environment, check=False
    )

    assert done.returncode < 0
    assert (2, 7, b"poison") == Board(path).read()


def test_figures_come_back_as_they_were_written() -> None:
    line = (
        '{"name": "x", "num_inputs": 3, "num_refused": 2, "num_accepted": 1, "slowest_ms": 0.5,'
        ' "rss_growth_kib": 0, "duration_s": 1.0, "defects": [{"what": "y", "payload": "6162"}]}'
    )

    assert ("y", b"ab") == (_outcome(line).defects[0].what, _outcome(line).defects[0].payload)
