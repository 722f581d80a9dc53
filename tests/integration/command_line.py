"""The command line as a process of its own, on the fake engine."""

import subprocess
import sys

SLIPSTREAM = (sys.executable, "-P", "-m", "slipstream.services.cli.main")
FAKE = ("--engine", "fake", "--test-mode", "--model", "fake", "--kv-memory", "64MiB")
READY = "Slipstream is ready on "


def url_of(up: "subprocess.Popen[str]") -> str:
    assert up.stdout is not None
    line = up.stdout.readline()
    assert line.startswith(READY)
    return line.removeprefix(READY).strip()


def ask(
    environment: dict[str, str], *arguments: str, timeout_s: float = 30
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*SLIPSTREAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=timeout_s,
    )


def generate(
    up_url: str, environment: dict[str, str], *arguments: str
) -> "subprocess.CompletedProcess[str]":
    return ask(environment, "generate", "--nats", up_url, *arguments)
