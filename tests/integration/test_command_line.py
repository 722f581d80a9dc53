"""The command line with the real services on the fake engine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.services.cli.run_directory import default_base, sweep

pytestmark = [pytest.mark.nats, pytest.mark.timeout(90)]

_SLIPSTREAM = (sys.executable, "-P", "-m", "slipstream.services.cli.main")
_FAKE = ("--engine", "fake", "--test-mode", "--model", "fake", "--kv-memory", "64MiB")
_READY = "Slipstream is ready on "


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Nothing of ours or of OpenTelemetry set by whoever runs the tests."""
    foreign = ("SLIPSTREAM_", "OTEL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "SLIPSTREAM_CACHE_DIR": str(tmp_path / "cache")}


@pytest.fixture
def up(environment: dict[str, str], tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    with (tmp_path / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [*_SLIPSTREAM, "up", "--port", "0", *_FAKE],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
    with process:
        yield process
        process.terminate()
        try:
            process.wait(10)
        finally:
            process.kill()
            # What a supervisor leaves that a test has killed.
            sweep(default_base())


def _url_of(up: "subprocess.Popen[str]") -> str:
    assert up.stdout is not None
    line = up.stdout.readline()
    assert line.startswith(_READY)
    return line.removeprefix(_READY).strip()


def _run_dirs(pid: int) -> list[Path]:
    return list(default_base().glob(f"{pid}-*"))


def _processes_of(run_dirs: list[Path]) -> list[int]:
    """Return the processes that were told to use the run directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "environ").read_bytes()
        except OSError:
            continue
        if any(str(run_dir).encode() in told for run_dir in run_dirs):
            found.append(int(process.name))
    return found


def _ask(
    environment: dict[str, str], *arguments: str, timeout_s: float = 30
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*_SLIPSTREAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=timeout_s,
    )


def _generate(
    up_url: str, environment: dict[str, str], *arguments: str
) -> "subprocess.CompletedProcess[str]":
    return _ask(environment, "generate", "--nats", up_url, *arguments)


def test_a_stack_answers_and_leaves_nothing(
    up: "subprocess.Popen[str]", environment: dict[str, str]
) -> None:
    url = _url_of(up)
    run_dirs = _run_dirs(up.pid)
    children = _processes_of(run_dirs)
    assert len(children) >= 5

    streamed = _generate(url, environment, "hello", "--max-tokens", "20", "--seed", "1")
    whole = _generate(
        url, environment, "hello", "--max-tokens", "20", "--seed", "1", "--no-stream", "--json"
    )
    raw = _generate(
        url, environment, "hello", "--raw", "--max-tokens", "5", "--temperature", "0", "--json"
    )
    refused = _generate(url, environment, "hello", "--temperature", "-1")
    began_s = time.monotonic()
    up.terminate()
    up.wait(10)

    assert time.monotonic() - began_s < 5
    assert 0 == streamed.returncode, streamed.stderr
    assert streamed.stdout.strip() == json.loads(whole.stdout)["text"].strip()
    assert 5 == len(json.loads(raw.stdout)["token_ids"])
    assert 1 == refused.returncode
    assert "temperature" in refused.stderr
    assert 1 == refused.stderr.count("\n")
    assert [] == _run_dirs(up.pid)
    assert [] == [pid for pid in children if Path(f"/proc/{pid}").exists()]


def test_a_worker_is_drained_and_the_stack_goes_on_without_it(
    up: "subprocess.Popen[str]", environment: dict[str, str], tmp_path: Path
) -> None:
    url = _url_of(up)

    def listed() -> dict[str, list[str]]:
        listing = _ask(environment, "workers", "--nats", url).stdout.splitlines()
        assert ["worker", "role", "host", "seats", "held", "state"] == listing[0].split()
        return {line.split()[1]: line.split() for line in listing[1:]}

    workers = listed()
    assert {"prefill", "decode", "draft"} == workers.keys()
    prefill = workers["prefill"][0]
    unknown = _ask(environment, "drain", "nobody", "--nats", url)
    drained = _ask(environment, "drain", prefill, "--nats", url, "--wait", "10")
    answer = _generate(url, environment, "hello " * 40, "--max-tokens", "4", "--json")

    assert 1 == unknown.returncode
    assert prefill in unknown.stderr
    assert (0, f"{prefill} is gone\n") == (drained.returncode, drained.stdout)
    assert {"decode", "draft"} == listed().keys()
    assert "local" == json.loads(answer.stdout)["route"]
    assert "prefill ended as it was told" in (tmp_path / "up.log").read_text()


def test_what_is_submitted_has_a_result(
    up: "subprocess.Popen[str]", environment: dict[str, str]
) -> None:
    environment = {**environment, "SLIPSTREAM_NATS_URL": _url_of(up)}
    sampling = ("--max-tokens", "20", "--seed", "1")
    whole = _ask(environment, "generate", "hello", "--no-stream", *sampling)
    submitted = _ask(environment, "submit", "hello", *sampling)
    again = [
        _ask(environment, "submit", "hello", "--request-key", "k", *sampling) for _ in range(2)
    ]
    refused = _ask(environment, "submit", "hello", "--temperature", "-1")
    key, named, wrong = (each.stdout.strip() for each in (submitted, again[0], refused))
    text = _ask(environment, "result", key, "--wait", "20")
    answer = _ask(environment, "result", named, "--wait", "20", "--json")
    failed = _ask(environment, "result", wrong, "--wait", "20")
    unknown = _ask(environment, "result", "seq-1", "--wait", "0.2")
    conflict = _ask(environment, "submit", "bye", "--request-key", "k")

    assert 0 == submitted.returncode, submitted.stderr
    assert again[0].stdout == again[1].stdout
    assert (0, whole.stdout) == (text.returncode, text.stdout), text.stderr
    assert whole.stdout.strip() == json.loads(answer.stdout)["choices"][0]["text"].strip()
    assert 1 == failed.returncode
    assert "temperature" in failed.stderr
    assert (3, "") == (unknown.returncode, unknown.stdout)
    assert "seq-1 has no result yet" in unknown.stderr
    assert (1, "") == (conflict.returncode, conflict.stdout)
    assert "--request-key k" in conflict.stderr


def test_submitting_where_no_scheduler_ran_says_so(
    own_nats_server: Any, environment: dict[str, str]
) -> None:
    done = _ask(environment, "submit", "hello", "--nats", own_nats_server.url)

    assert (1, "") == (done.returncode, done.stdout)
    assert "once a scheduler has run there" in done.stderr
    assert 1 == done.stderr.count("\n")


def test_children_end_with_a_killed_supervisor(up: "subprocess.Popen[str]") -> None:
    _url_of(up)
    children = _processes_of(_run_dirs(up.pid))

    up.kill()
    up.wait(10)

    deadline_s = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline_s, "a child outlived its supervisor"
        time.sleep(0.05)


def test_an_interrupted_client_cancels_its_request(
    up: "subprocess.Popen[str]", environment: dict[str, str]
) -> None:
    url = _url_of(up)
    client = subprocess.Popen(
        [*_SLIPSTREAM, "generate", "--nats", url, "hello", "--max-tokens", "4000"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with client:
        assert client.stdout is not None
        assert client.stdout.read(1)
        client.send_signal(signal.SIGINT)

        assert 130 == client.wait(5)


def _run(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return _ask(environment, "run", "hello", *arguments, *_FAKE, timeout_s=60)


def test_one_shot_prints_one_object_and_nothing_else(environment: dict[str, str]) -> None:
    done = _run(environment, "--json", "--max-tokens", "70", "--seed", "3")

    assert 0 == done.returncode, done.stderr
    answer = json.loads(done.stdout)
    assert 1 == done.stdout.count("\n")
    assert "remote" == answer["route"]
    assert 32 == len(answer["trace_id"])
    assert {"scheduler", "kv", "prefill", "decode"} <= set(answer["services"])


def test_one_shot_fails_in_one_line_and_stops_everything(environment: dict[str, str]) -> None:
    done = _run(environment, "--max-tokens", "-3")

    assert 1 == done.returncode
    assert "" == done.stdout
    last = done.stderr.splitlines()[-1]
    assert last.startswith("slipstream: ")
    assert "max_tokens" in last
