"""`slipstream run` does everything in one shot and leaves nothing behind."""

import json
import secrets
import subprocess
import time
from pathlib import Path

import pytest

from slipstream.services.cli.run_directory import default_base

from . import stack

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(200)]

_AIM_S = 30.0  # ten times the aim for the first token, and here for all of it
_KEYS = {
    "text",
    "token_ids",
    "finish_reason",
    "route",
    "ttft_ms",
    "tpot_ms",
    "trace_id",
    "services",
}


def _run(
    arguments: list[str], directory: Path, mark: str
) -> tuple[subprocess.CompletedProcess[str], int, float]:
    """Run it to its end; return also its process id and how long it took."""
    began_s = time.monotonic()
    process = subprocess.Popen(
        [stack.SLIPSTREAM, "run", *arguments],
        cwd=directory,
        env=stack.marked_environment(mark, {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=_AIM_S)
    finally:
        process.kill()
    took_s = time.monotonic() - began_s
    done = subprocess.CompletedProcess(arguments, process.returncode, out, err)
    return done, process.pid, took_s


def test_run_prints_one_json_object_and_leaves_nothing_behind(
    model_dir: Path, tmp_path: Path
) -> None:
    mark = secrets.token_hex(8)

    done, pid, took_s = _run(
        ["--json", "--temperature", "0", "What is the capital of France?"], tmp_path, mark
    )

    assert 0 == done.returncode, done.stderr
    (line,) = done.stdout.splitlines()
    answer = json.loads(line)
    assert answer.keys() == _KEYS
    assert "Paris" in answer["text"]
    assert "stop" == answer["finish_reason"]
    assert "remote" == answer["route"]
    assert ["decode", "draft", "kv", "prefill", "scheduler"] == answer["services"]
    assert answer["ttft_ms"] > 0
    assert len(answer["token_ids"]) > 1
    assert "decode is ready" in done.stderr
    assert took_s < _AIM_S
    assert {} == stack.marked_processes(mark)
    assert [] == list(default_base().glob(f"{pid}-*"))
    assert [] == list(tmp_path.iterdir())


def test_run_streams_text_and_a_summary(model_dir: Path, tmp_path: Path) -> None:
    mark = secrets.token_hex(8)

    done, _, _ = _run(["--temperature", "0", "--route", "local"], tmp_path, mark)

    assert 0 == done.returncode, done.stderr
    assert "Paris" in done.stdout.splitlines()[0]
    for label in ("time to first token", "time per output token", "route", "trace id"):
        assert label in done.stdout
    assert {} == stack.marked_processes(mark)


def test_run_with_what_can_not_work_says_so_and_leaves_nothing_behind(tmp_path: Path) -> None:
    mark = secrets.token_hex(8)

    done, pid, _ = _run(["--json", "--model", "/no/such/model", "Hello"], tmp_path, mark)

    assert 0 != done.returncode
    assert "" == done.stdout
    assert "/no/such/model" in done.stderr
    assert "Traceback" not in done.stderr
    assert {} == stack.marked_processes(mark)
    assert [] == list(default_base().glob(f"{pid}-*"))
