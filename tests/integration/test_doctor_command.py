"""`slipstream doctor` on real servers and a real stack."""

import json
import subprocess
from typing import Any

import pytest

from .command_line import ask, url_of

pytestmark = pytest.mark.nats


def _findings(environment: dict[str, str], url: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Return the exit status, and the findings by what they are about."""
    done = ask(environment, "doctor", "--nats", url, "--model", "fake", "--json")
    assert "" == done.stderr
    return done.returncode, {each["about"]: each for each in json.loads(done.stdout)}


def test_a_stack_that_runs_is_well(
    up: "subprocess.Popen[str]", environment: dict[str, str]
) -> None:
    url = url_of(up)
    status, found = _findings(environment, url)

    assert 0 == status
    about_stack = ("NATS", "payload", "distance", "JetStream", "clocks", "services", "versions")
    assert {"ok"} == {found[each]["verdict"] for each in about_stack if each != "distance"}
    for role in ("scheduler", "kv", "prefill", "decode", "draft", "gateway"):
        assert f"1 {role}" in found["services"]["found"]
    assert found["models"]["found"].startswith("fake (")
    shown = ask(environment, "doctor", "--nats", url, "--model", "fake")
    assert (0, "") == (shown.returncode, shown.stderr)
    assert "versions" in shown.stdout


def test_a_server_that_stores_nothing_is_a_problem(
    plain_nats_server: Any,  # Any: the fixture's class is private to conftest
    environment: dict[str, str],
) -> None:
    status, found = _findings(environment, plain_nats_server.url)

    assert 1 == status
    assert ("problem", "not enabled") == (
        found["JetStream"]["verdict"],
        found["JetStream"]["found"],
    )
    assert "warning" == found["services"]["verdict"]


def test_without_a_server_it_looks_at_the_machine(environment: dict[str, str]) -> None:
    status, found = _findings(environment, "nats://127.0.0.1:1")

    assert 0 == status
    assert "warning" == found["NATS"]["verdict"]
    assert "no NATS server answers" in found["NATS"]["found"]
    assert "kernels" in found
