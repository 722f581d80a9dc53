"""`slipstream dead` on a real server, with a scheduler that serves what is requeued."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.shared.bus.durable import BODY_DIGEST, DurableLimits
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import SUBMIT_MODEL
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import Completion
from slipstream.shared.messages.submission import result_key

from .command_line import ask
from .service_stack import ServiceStack
from .submitter import Submitter

pytestmark = [pytest.mark.nats, pytest.mark.timeout(60)]


@pytest.fixture
async def bus(own_nats_server: Any) -> AsyncIterator[NatsBus]:
    made = await NatsBus.connect(own_nats_server.url, "test")
    yield made
    await made.close()


async def test_dead_jobs_are_looked_at_requeued_and_served_under_their_keys(
    own_nats_server: Any, bus: NatsBus, tmp_path: Path
) -> None:
    url, submitter = own_nats_server.url, Submitter(bus)
    stack = ServiceStack(url, tmp_path, scheduler={"max_num_deliveries": 1})
    await stack.start("scheduler", "kv", "prefill", "decode")
    front = stack.one("scheduler")._front
    open_request = front.open_request

    async def refuse(*_: Any, **__: Any) -> Failed:
        return Failed(code="no_workers", message="for a while")

    async def dead(*arguments: str) -> Any:
        return await asyncio.to_thread(ask, dict(os.environ), "dead", *arguments, "--nats", url)

    try:
        front.open_request = refuse
        plain = await submitter.submit_bytes(
            b'{"prompt": "x", "max_tokens": 4}', SUBMIT_MODEL.subject(model="fake")
        )
        await submitter.submit(request_key="order-17", max_tokens=4)
        keys = [plain, result_key("order-17")]
        failed = [await submitter.ending(key) for key in keys]
        await submitter.until_empty()
        listed = json.loads((await dead("list", "--json")).stdout)
        shown = json.loads((await dead("show", str(listed[1]["number"]), "--json")).stdout)
        front.open_request = open_request
        requeued = await dead("requeue", "--all", "--reason", "no_workers")
        answers = [await submitter.ending(key) for key in keys]
        await submitter.until_empty()
        again = await dead("requeue", str(listed[0]["number"]))
        unknown = await dead("requeue", str(listed[1]["number"] + 1))
    finally:
        await stack.stop()

    assert all(isinstance(each, Failed) for each in failed)
    assert keys == [each["key"] for each in listed]
    assert ["no_workers"] * 2 == [each["reason"] for each in listed]
    assert "order-17" == shown["request"]["request_key"]
    assert keys == requeued.stdout.split(), requeued.stderr
    assert all(isinstance(each, Completion) for each in answers), answers
    assert (0, "") == (again.returncode, again.stdout)
    assert "requeued or dropped before" in again.stderr
    assert 1 == unknown.returncode
    assert [] == await submitter.dead_letters()


async def test_of_a_result_only_the_revision_that_was_read_is_removed(bus: NatsBus) -> None:
    durable = bus.durable()
    await durable.ensure(DurableLimits())
    await durable.results.create("seq-1", b"first", {BODY_DIGEST: "d"})
    first = await durable.results.get("seq-1")
    assert first is not None

    assert await durable.results.discard("seq-1", first)
    assert await durable.results.get("seq-1") is None
    assert await durable.results.create("seq-1", b"second", {BODY_DIGEST: "d"})
    assert not await durable.results.discard("seq-1", first)
    assert not await durable.results.create("seq-1", b"third", {BODY_DIGEST: "d"})
