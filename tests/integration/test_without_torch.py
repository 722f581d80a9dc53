"""Services as whole processes where what they may not need is not there: torch above all."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slipstream.shared.lifecycle import read_status

# Stands in front of every finder, as if the distributions were not installed.
_TORCH = ("torch", "transformers")
# What each may not need; the KV manager's blocks and the scheduler's constraints are numpy's.
_WITHOUT = {
    "scheduler": _TORCH,
    "kv": _TORCH,
    "gateway": (*_TORCH, "numpy", "llguidance", "gguf", "safetensors"),
}
_BLOCK = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
"""
_RUN = """
from slipstream.services.cli.main import run_command

sys.exit(run_command(sys.argv[1:]))
"""
_START_S = 20.0
_STOP_S = 10.0


@pytest.mark.nats
@pytest.mark.parametrize("role", _WITHOUT)
def test_service_is_ready_and_ends_well_without_torch(
    nats_server: Any, tmp_path: Path, role: str
) -> None:
    status_file, log_file = tmp_path / "status.json", tmp_path / "log"
    command = [
        sys.executable,
        "-P",
        "-c",
        _blocking(*_WITHOUT[role]) + _RUN,
        role,
        "--nats",
        nats_server.url,
    ]
    command += ["--model", "fake", "--engine", "fake", "--test-mode"]
    command += ["--cache-dir", str(tmp_path / "cache"), "--status-file", str(status_file)]
    if role == "kv":
        command += ["--arena-dir", str(tmp_path / "arena"), "--kv-memory", "1MiB"]
    if role == "gateway":
        command += ["--http-port", "0"]
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=_environment())
    try:
        _wait_ready(process, status_file, log_file)
        process.send_signal(signal.SIGTERM)
        status = process.wait(_STOP_S)
    finally:
        process.kill()
        process.wait()

    assert 0 == status, log_file.read_text()
    assert "is blocked" not in log_file.read_text()


@pytest.mark.parametrize("name", ["torch", "transformers", "numpy"])
def test_blocked_import_raises(name: str) -> None:
    """Without this the test above would prove nothing."""
    command = [sys.executable, "-P", "-c", f"{_blocking(name)}import {name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 1 == done.returncode
    assert f"{name} is blocked" in done.stderr


def _blocking(*names: str) -> str:
    return f"BLOCKED = {names!r}\n{_BLOCK}"


def _environment() -> dict[str, str]:
    foreign = ("SLIPSTREAM_", "OTEL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def _wait_ready(process: "subprocess.Popen[bytes]", status_file: Path, log_file: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while (status := read_status(status_file)) is None or status.state != "ready":
        assert process.poll() is None, log_file.read_text()
        assert time.monotonic() < deadline_s, log_file.read_text()
        time.sleep(0.02)
