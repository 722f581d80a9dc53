"""`slipstream trace` on the traces that `up` keeps of a real stack."""

import json
import subprocess
import time

import pytest

from slipstream.shared.telemetry.otlp_json import from_otlp

from .command_line import ask, generate, url_of

pytestmark = pytest.mark.nats


def test_what_was_asked_is_shown_from_end_to_end(
    up: "subprocess.Popen[str]", environment: dict[str, str]
) -> None:
    url = url_of(up)
    asked = json.loads(generate(url, environment, "--json", "--max-tokens", "5", "Hello").stdout)
    trace_id = asked["trace_id"]
    deadline_s = time.monotonic() + 15
    # Each process sends its spans on its own time.
    while True:
        found = ask(environment, "trace", trace_id, "--nats", url, "--json")
        spans = from_otlp(json.loads(found.stdout)) if found.returncode == 0 else []
        roles = {span.service.removeprefix("slipstream-") for span in spans}
        if roles >= {"scheduler", "decode", "kv"} and any(not s.parent_span_id for s in spans):
            break
        assert time.monotonic() < deadline_s, (roles, found.stderr)
        time.sleep(0.2)

    assert {trace_id} == {span.trace_id for span in spans}
    (listed,) = json.loads(ask(environment, "trace", "--nats", url, "--json").stdout)
    assert trace_id == listed["trace_id"]
    shown = ask(environment, "trace", listed["request_id"], "--nats", url).stdout
    assert f"trace {trace_id}, request {listed['request_id']}: " in shown
    # Services may have sent a span more in between.
    last = ask(environment, "trace", "last", "--nats", url).stdout
    assert last.startswith(f"trace {trace_id}")
    unknown = ask(environment, "trace", "nobody", "--nats", url)
    assert (1, True) == (unknown.returncode, "no trace of 'nobody' is kept" in unknown.stderr)


def test_where_nobody_keeps_traces_it_says_who_does(
    nats_server: object, environment: dict[str, str]
) -> None:
    url = getattr(nats_server, "url")  # noqa: B009 - the fixture's class is private to conftest
    found = ask(environment, "trace", "--nats", url)

    assert 1 == found.returncode
    assert "nobody keeps traces" in found.stderr
