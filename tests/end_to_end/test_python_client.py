"""The blocking client as a program uses it, on real processes of which one is killed."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.client import Client

from . import conftest, stack

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

_ARGUMENTS = ["--test-mode", "--engine", "fake", "--kv-memory", "1MiB"]
_ROOT = Path(__file__).parents[2]
_MODULE = "slipstream.client"
_SLOW = {"SLIPSTREAM_FAKE_STEP_MS": "25"}
_PROMPT = "Once upon a time"

# Ctrl-C comes while it reads.
_PROGRAM = """
import sys
from slipstream.client import Client

with Client(sys.argv[1]) as client:
    try:
        with client.stream("Once upon a time", max_tokens=2000, ignore_eos=True) as stream:
            for piece in stream:
                print("reading", flush=True)
    except KeyboardInterrupt:
        print("cancelled" if stream.is_cancelled else "left running")
"""


@pytest.fixture
def running(start_stack: conftest.StartStack) -> stack.Stack:
    return start_stack(_ARGUMENTS, _SLOW)


@pytest.mark.slow
def test_a_killed_decode_worker_changes_no_character(running: stack.Stack) -> None:
    with Client(running.nats_url, timeout_s=60) as client:
        expected = client.generate(_PROMPT, max_tokens=90, ignore_eos=True, temperature=1.0, seed=5)
        with client.stream(
            _PROMPT, max_tokens=90, ignore_eos=True, temperature=1.0, seed=5
        ) as stream:
            pieces = [next(stream) for _ in range(10)]
            running.kill("decode")
            pieces += stream

    assert expected.text == "".join(pieces) == stream.answer.text
    assert expected.token_ids == stream.answer.token_ids
    assert 0 < stream.num_retries


def test_an_interrupted_program_cancels_its_request(running: stack.Stack) -> None:
    program = subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM, running.nats_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert "reading\n" == program.stdout.readline()
    program.send_signal(2)
    said, complaints = program.communicate(timeout=20)
    ended_s = time.monotonic()

    assert (0, "cancelled", "") == (program.returncode, said.split()[-1], complaints)
    assert stack.wait_until(lambda: _was_cancelled(running), 1.0 + ended_s - time.monotonic())


@pytest.mark.parametrize("page", ["README.md", "docs/client.md"])
def test_what_the_documents_show_runs(running: stack.Stack, page: str) -> None:
    text = (_ROOT / page).read_text(encoding="utf-8")
    examples = [
        block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if _MODULE in block
    ]
    for example in examples:
        code = example.replace("nats://127.0.0.1:4222", running.nats_url)
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

        assert (0, "") == (done.returncode, done.stderr)
        assert running.nats_url in code
        assert done.stdout
    assert examples


def _was_cancelled(running: stack.Stack) -> bool:
    return any(line.get("finish_reason") == "abort" for line in running.log)
