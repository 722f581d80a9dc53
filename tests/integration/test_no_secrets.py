"""What clients send stays between them and the model: not in logs, spans, metrics or errors."""

import json
import logging
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from slipstream.shared.telemetry.spans import FinishedSpan
from slipstream.shared.telemetry.tracing import Tracer

from . import service_stack
from .http_client import HttpClient, chat_body
from .service_stack import OVER_HTTP

pytestmark = pytest.mark.nats

PROMPT, SALT, KEY = "marmoset-prompt", "kestrel-salt", "pangolin-key-0123456789"
WRONG_KEY, STOP, TENANT_KEY_FILE = "wombat-wrong-key", "ocelot-stop", "quokka-second-key"
SECRETS = (PROMPT, SALT, KEY, WRONG_KEY, STOP, TENANT_KEY_FILE)


class _Sink:
    """Keeps what is recorded."""

    def __init__(self) -> None:
        self.spans: list[FinishedSpan] = []

    def record(self, span: FinishedSpan) -> None:
        self.spans.append(span)

    def flush(self, _deadline_s: float) -> bool:
        return True

    def shutdown(self, _deadline_s: float) -> bool:
        return True


async def _ask_in_many_ways(http: HttpClient) -> list[httpx.Response]:
    allowed = {"authorization": f"Bearer {KEY}"}
    body = {"prompt": PROMPT, "cache_salt": SALT, "max_tokens": 3, "stop": [STOP]}
    text, chat = "/v1/completions", "/v1/chat/completions"
    return [
        await http.post(text, body, **allowed),
        await http.post(text, {**body, "stream": True}, **allowed),
        await http.post(
            chat, {**chat_body(PROMPT), "max_tokens": 3, "cache_salt": SALT}, **allowed
        ),
        await http.post(text, body, authorization=f"Bearer {WRONG_KEY}"),
        await http.post(text, body, authorization=WRONG_KEY),
        await http.post(text, {**body, "temperature": 99}, **allowed),
        await http.post(text, {**body, "prompt": PROMPT * 1000}, **allowed),
        await http.post(text, json.dumps(body).encode()[:-1], **allowed),
        await http.post(text, {**body, "tools": PROMPT}, **allowed),
        await http.post(text, {**body, "unheard_of": PROMPT}, **allowed),
        await http.post(text, {**body, "guided_regex": f"({PROMPT}"}, **allowed),
        await http.get("/metrics"),
        await http.get("/health"),
    ]


async def test_no_secret_leaves_by_logs_spans_metrics_or_errors(
    start: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the level of debugging, of requests that succeed and of those that fail."""
    sink = _Sink()
    monkeypatch.setattr(service_stack, "Tracer", lambda: Tracer(sink))
    caplog.set_level(logging.DEBUG)
    keys = f"{KEY} one,{TENANT_KEY_FILE} two"
    with capture_logs() as logs:
        every = {"log_level": "debug"}
        stack = await start(*OVER_HTTP, every=every, gateway={"api_key_list": keys})
        http = HttpClient(stack.one("gateway").http_url)
        answers = await _ask_in_many_ways(http)
        await http.close()
        await stack.stop()

    statuses = [each.status_code for each in answers]
    assert [200, 200, 200, 401, 401, 400, 400, 400] == statuses[:8]
    errors = [each.text for each in answers if each.status_code != 200]
    # The client is told its own pattern, by the library's error, and nobody else is.
    told = {
        "logs": repr(logs) + repr([record.__dict__ for record in caplog.records]),
        "spans": repr(sink.spans),
        "metrics": answers[-2].text + repr([each.headers for each in answers]),
        "errors": "".join(errors),
    }
    assert "request_admitted" in told["logs"]
    assert "http_answered" in told["logs"]
    assert len(sink.spans) > 10
    leaks = [
        (where, secret) for where, text in told.items() for secret in SECRETS if secret in text
    ]
    assert [] == leaks
