"""The command line with the real services on the fake engine."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from slipstream.services.cli.run_directory import default_base

from .command_line import FAKE, SLIPSTREAM, ask, generate, url_of

pytestmark = [pytest.mark.nats, pytest.mark.timeout(90)]


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


def _open_to_others(run_dirs: list[Path]) -> list[str]:
    """Return what others may read, write or connect to: arena, sockets, logs, NATS' store."""
    found = [each for run_dir in run_dirs for each in (run_dir, *run_dir.rglob("*"))]
    assert len(found) > 10
    assert any(each.is_socket() for each in found)
    return [f"{each}: {each.stat().st_mode:o}" for each in found if each.stat().st_mode & 0o077]


def test_a_stack_answers_and_leaves_nothing(
    up: "subprocess.Popen[str]", environment: dict[str, str]
) -> None:
    url = url_of(up)
    run_dirs = _run_dirs(up.pid)
    children = _processes_of(run_dirs)
    assert len(children) >= 5
    assert [] == _open_to_others(run_dirs), "whatever the umask is"

    streamed = generate(url, environment, "hello", "--max-tokens", "20", "--seed", "1")
    whole = generate(
        url, environment, "hello", "--max-tokens", "20", "--seed", "1", "--no-stream", "--json"
    )
    raw = generate(
        url, environment, "hello", "--raw", "--max-tokens", "5", "--temperature", "0", "--json"
    )
    refused = generate(url, environment, "hello", "--temperature", "-1")
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
    url = url_of(up)

    def listed() -> dict[str, list[str]]:
        listing = ask(environment, "workers", "--nats", url).stdout.splitlines()
        assert ["worker", "role", "host", "seats", "held", "state"] == listing[0].split()
        return {line.split()[1]: line.split() for line in listing[1:]}

    workers = listed()
    assert {"prefill", "decode", "draft", "scheduler"} == workers.keys()
    assert "active" == workers["scheduler"][-1]
    prefill = workers["prefill"][0]
    unknown = ask(environment, "drain", "nobody", "--nats", url)
    drained = ask(environment, "drain", prefill, "--nats", url, "--wait", "10")
    answer = generate(url, environment, "hello " * 40, "--max-tokens", "4", "--json")

    assert 1 == unknown.returncode
    assert prefill in unknown.stderr
    assert (0, f"{prefill} is gone\n") == (drained.returncode, drained.stdout)
    assert {"decode", "draft", "scheduler"} == listed().keys()
    assert "local" == json.loads(answer.stdout)["route"]
    assert "prefill ended as it was told" in (tmp_path / "up.log").read_text()


def test_what_is_submitted_has_a_result(
    up: "subprocess.Popen[str]", environment: dict[str, str]
) -> None:
    environment = {**environment, "SLIPSTREAM_NATS_URL": url_of(up)}
    sampling = ("--max-tokens", "20", "--seed", "1")
    whole = ask(environment, "generate", "hello", "--no-stream", *sampling)
    submitted = ask(environment, "submit", "hello", *sampling)
    again = [ask(environment, "submit", "hello", "--request-key", "k", *sampling) for _ in range(2)]
    refused = ask(environment, "submit", "hello", "--temperature", "-1")
    key, named, wrong = (each.stdout.strip() for each in (submitted, again[0], refused))
    text = ask(environment, "result", key, "--wait", "20")
    answer = ask(environment, "result", named, "--wait", "20", "--json")
    failed = ask(environment, "result", wrong, "--wait", "20")
    unknown = ask(environment, "result", "seq-1", "--wait", "0.2")
    conflict = ask(environment, "submit", "bye", "--request-key", "k")

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
    done = ask(environment, "submit", "hello", "--nats", own_nats_server.url)

    assert (1, "") == (done.returncode, done.stdout)
    assert "once a scheduler has run there" in done.stderr
    assert 1 == done.stderr.count("\n")


def test_children_end_with_a_killed_supervisor(up: "subprocess.Popen[str]") -> None:
    url_of(up)
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
    url = url_of(up)
    client = subprocess.Popen(
        [*SLIPSTREAM, "generate", "--nats", url, "hello", "--max-tokens", "4000"],
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
    return ask(environment, "run", "hello", *arguments, *FAKE, timeout_s=60)


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
