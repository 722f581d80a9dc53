"""The console's page and events over ASGI: what is served, how safely, to whom, to how many."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette

from slipstream.services.gateway import pipeline_feed
from slipstream.services.gateway.app import make_app
from slipstream.services.gateway.console import page_files
from slipstream.services.gateway.gateway import Gateway, open_gateway
from slipstream.services.gateway.metrics import GatewayMetrics
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.subjects import REPORT
from slipstream.shared.config import GatewayConfig
from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.reports import HeldSequence, WorkerReport
from slipstream.shared.telemetry.prometheus_meter import PrometheusMeter
from slipstream.shared.telemetry.tracing import Tracer

KEY = {"authorization": "Bearer secret"}
WAIT_S = 5.0

Events = list[dict[str, Any]]  # Any: JSON


class Visit:
    """One GET request, answered as it goes on."""

    def __init__(self, app: Starlette, path: str, headers: dict[str, str] | None = None) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self._changed = asyncio.Event()
        self._gone = asyncio.Event()
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    @property
    def events(self) -> Events:
        found = re.findall(rb"data: (\{.*\})\n\n", self.body)
        return [msgspec.json.decode(each) for each in found]

    async def until(self, num_events: int) -> Events:
        async with asyncio.timeout(WAIT_S):
            while len(self.events) < num_events:
                assert not self.task.done(), self.body
                self._changed.clear()
                await self._changed.wait()
        return self.events

    async def leave(self) -> None:
        self._gone.set()
        await asyncio.wait_for(self.task, WAIT_S)

    async def _receive(self) -> dict[str, Any]:  # Any: ASGI
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:  # Any: ASGI
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        self.body += message.get("body", b"")
        self._changed.set()


async def get(app: Starlette, path: str, headers: dict[str, str] | None = None) -> Visit:
    visit = Visit(app, path, headers)
    await asyncio.wait_for(visit.task, WAIT_S)
    return visit


class House:
    """A gateway on a bus in memory."""

    def __init__(self, gateway: Gateway, bus: MemoryBus) -> None:
        self.gateway = gateway
        self.bus = bus
        self.app = make_app(gateway, PrometheusMeter())

    async def report(self, num_tokens: int) -> None:
        held = HeldSequence(
            request_id=RequestId("secret-id"), attempt=1, phase="decoding", next_index=num_tokens
        )
        report = WorkerReport(
            worker_id=WorkerId("decode-1"),
            role="decode",
            epoch=1,
            number=1,
            num_seats=4,
            num_free_seats=3,
            held=[held],
        )
        await self.bus.publish(REPORT.subject(worker_id="decode-1"), encode(report))


@contextlib.asynccontextmanager
async def opened(cache_dir: Path, keys: str = "") -> AsyncIterator[House]:
    config = GatewayConfig(cache_dir=cache_dir, engine="fake", is_test_mode=True, api_key_list=keys)
    bus = MemoryBus()
    metrics = GatewayMetrics(PrometheusMeter())
    gateway = await open_gateway(config, bus, Tracer(), metrics)
    yield House(gateway, bus)
    await gateway.finish()
    await bus.close()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as found:
        yield found


@pytest.fixture
async def locked_house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path, "secret me") as found:
        yield found


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/console/main.js", "text/javascript"),
        ("/console/console.css", "text/css"),
        ("/console/icon.svg", "image/svg+xml"),
    ],
)
async def test_files_are_served_under_a_strict_policy(house: House, path: str, kind: str) -> None:
    found = await get(house.app, path)
    policy = dict(
        part.split(" ", 1) for part in found.headers["content-security-policy"].split("; ")
    )

    assert 200 == found.status
    assert f"{kind}" == found.headers["content-type"].partition(";")[0]
    assert "nosniff" == found.headers["x-content-type-options"]
    assert "'none'" == policy["default-src"] == policy["frame-ancestors"]
    assert {"'self'"} == {policy[name] for name in ("script-src", "style-src", "connect-src")}


async def test_a_file_that_is_known_is_not_sent_again(house: House) -> None:
    first = await get(house.app, "/console/main.js")
    second = await get(house.app, "/console/main.js", {"if-none-match": first.headers["etag"]})

    assert (304, b"") == (second.status, second.body)


@pytest.mark.parametrize("path", ["/console/", "/console/none.js", "/console/../app.py"])
async def test_nothing_else_is_served(house: House, path: str) -> None:
    found = await get(house.app, path)

    assert 404 == found.status
    assert "unknown_route" == msgspec.json.decode(found.body)["error"]["code"]


def test_the_page_needs_nothing_from_elsewhere_and_has_nothing_inline() -> None:
    page = next(path for path in page_files() if path.name == "index.html").read_text()
    texts = {path.name: path.read_text() for path in page_files()}
    imports = {
        name for text in texts.values() for name in re.findall(r'from "\./([^"]+)"', text)
    } | set(re.findall(r'(?:src|href)="console/([^"]+)"', page))

    assert not re.search(r"<style|style=|<script(?![^>]*src=)|\son\w+=", page)
    assert {} == {
        name: found
        for name, text in texts.items()
        if (found := re.findall(r"https?://(?!www\.w3\.org/)[^\s\"']+", text))
    }
    assert imports <= set(texts), "what the page asks for is there"
    assert set(texts) - {"index.html"} == imports, "nothing is left over"


async def test_watchers_see_reports_as_they_come_and_no_id(house: House) -> None:
    visit = Visit(house.app, "/console/events")
    (first,) = await visit.until(1)
    await house.report(1)
    await visit.until(2)
    await house.report(5)
    events = await visit.until(3)
    await visit.leave()

    assert "text/event-stream; charset=utf-8" == visit.headers["content-type"]
    assert (True, []) == (first["is_first"], first["requests"])
    assert [(False, 1), (False, 5)] == [
        (each["is_first"], each["requests"][0]["num_tokens"]) for each in events[1:]
    ]
    assert b"secret-id" not in visit.body


async def test_a_stream_that_fails_says_so(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"data: {}\n\n"
        raise RuntimeError("of whatever kind")

    @contextlib.asynccontextmanager
    async def watched() -> AsyncIterator[AsyncIterator[bytes]]:
        yield broken()

    monkeypatch.setattr(house.gateway.feed, "watched", watched)
    visit = await get(house.app, "/console/events")

    _, error, done, _ = visit.body.split(b"\n\n")
    assert b"internal_error" in error
    assert b"data: [DONE]" == done


async def test_nobody_listens_while_nobody_watches(house: House) -> None:
    """What nobody sees costs nothing: no subscription, no model, no question for figures."""
    asked = []

    async def note(_: object) -> None:
        asked.append(1)

    await house.bus.subscribe("$SRV.STATS", note)
    await house.report(1)

    assert house.gateway.feed.follow("console-1-1") is None
    visit = Visit(house.app, "/console/events")
    (first,) = await visit.until(1)
    await house.report(1)
    await visit.until(2)

    assert [] == first["requests"]
    assert house.gateway.feed.follow("console-1-1") is not None
    await visit.leave()
    num_asked = len(asked)

    assert num_asked >= 1
    assert house.gateway.feed.follow("console-1-1") is None
    await asyncio.sleep(2.5 * pipeline_feed._ASK_S)

    assert num_asked == len(asked)


async def test_updates_are_gathered(house: House) -> None:
    """However fast reports come, a watcher gets five updates a second at most."""
    visit = Visit(house.app, "/console/events")
    await visit.until(1)
    loop = asyncio.get_running_loop()
    end_s = loop.time() + 1.0
    number = 0
    while loop.time() < end_s:
        number += 1
        await house.report(number)
        await asyncio.sleep(0.005)
    num_events = len(visit.events)
    await visit.leave()

    assert 2 <= num_events <= 7


async def test_the_number_of_watchers_is_bounded(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_feed, "MAX_NUM_WATCHERS", 2)
    visits = [Visit(house.app, "/console/events") for _ in range(2)]
    for visit in visits:
        await visit.until(1)
    refused = await get(house.app, "/console/events")

    assert (429, "5") == (refused.status, refused.headers["retry-after"])
    assert "overloaded" == msgspec.json.decode(refused.body)["error"]["code"]
    await visits[0].leave()
    again = Visit(house.app, "/console/events")
    await again.until(1)
    for visit in (visits[1], again):
        await visit.leave()

    assert 0 == house.gateway.feed.num_watchers


async def test_events_need_the_key_and_the_page_does_not(locked_house: House) -> None:
    app = locked_house.app
    refused = await get(app, "/console/events")
    wrong = await get(app, "/console/events", {"authorization": "Bearer no"})
    allowed = Visit(app, "/console/events", KEY)
    await allowed.until(1)
    await allowed.leave()

    assert (401, 401, 200) == (refused.status, wrong.status, allowed.status)
    assert 200 == (await get(app, "/")).status


async def test_a_drain_ends_the_stream(house: House) -> None:
    visit = Visit(house.app, "/console/events")
    await visit.until(1)
    await house.gateway.drain(0.1)
    await asyncio.wait_for(visit.task, WAIT_S)

    assert visit.body.endswith(b"data: [DONE]\n\n")
    assert 503 == (await get(house.app, "/console/events")).status


@pytest.mark.parametrize(
    ("client_id", "shown"), [("console-ab-1", "console-ab-1"), ("order-of-alice", None)]
)
async def test_only_names_that_pages_give_are_shown(
    house: House, client_id: str, shown: str | None
) -> None:
    visit = Visit(house.app, "/console/events")
    await visit.until(1)
    follower = house.gateway.feed.follow(client_id)
    assert follower is not None
    follower.see([(0, pipeline_feed.Accepted(request_id=RequestId("x")))])
    events = await visit.until(2)
    await visit.leave()

    assert shown == events[1]["requests"][0].get("client_id")
