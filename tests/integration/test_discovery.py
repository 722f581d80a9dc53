"""Service discovery, asked for by clients that know nothing of us."""

import asyncio
import json
import secrets
import subprocess
from collections.abc import AsyncIterator, Callable
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.micro.service import ServiceInfo, ServicePing, ServiceStats

from slipstream.services.cli.connection import operator_access
from slipstream.shared.bus.bus import Bus, Incoming
from slipstream.shared.bus.discovery import Discovery, Identity
from slipstream.shared.bus.endpoint import serve
from slipstream.shared.bus.subjects import CANCEL, GENERATE, GENERATE_MODEL, MANAGER_VERBS, REPORT
from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.generate import Cancel, Cancelled
from slipstream.shared.version import VERSION

from .command_line import url_of


def identity() -> Identity:
    return Identity(
        name=f"test-{secrets.token_hex(4)}",
        id=f"one-{secrets.token_hex(4)}",
        version="1.2.3",
        description="For a test",
        metadata={"role": "test"},
    )


async def ask(bus: Bus, *tokens: str) -> Any:
    answer = await bus.request(".".join(("$SRV", *tokens)), b"", timeout_s=2)
    return json.loads(answer.payload)


async def cancelled(message: Cancel, _incoming: Incoming) -> Cancelled:
    if message.reason == "bad":
        raise InvalidRequestError("reason", "is bad")
    return Cancelled(request_id=message.request_id)


async def test_a_service_answers_under_its_name_and_under_its_id(bus: Bus) -> None:
    who = identity()
    await Discovery(bus, who).start()
    by_name, alone = await ask(bus, "PING", who.name), await ask(bus, "PING", who.name, who.id)

    assert by_name == alone
    assert {
        "type": "io.nats.micro.v1.ping_response",
        "name": who.name,
        "id": who.id,
        "version": "1.2.3",
        "metadata": {"role": "test"},
    } == alone


async def test_endpoints_are_those_that_answer(bus: Bus) -> None:
    who, request_id = identity(), secrets.token_hex(6)
    subject = CANCEL.subject(request_id=request_id)
    await serve(bus, subject, CANCEL, cancelled, queue="some")
    await serve(bus, REPORT.subject(worker_id=request_id), REPORT, cancelled)
    await Discovery(bus, who).start()
    found = await ask(bus, "INFO", who.name)

    assert ("io.nats.micro.v1.info_response", "For a test") == (
        found["type"],
        found["description"],
    )
    assert [{"name": "cancel", "subject": subject, "queue_group": "some", "metadata": {}}] == found[
        "endpoints"
    ]


async def test_questions_times_and_errors_are_counted(bus: Bus) -> None:
    who, request_id = identity(), RequestId(secrets.token_hex(6))
    await serve(bus, CANCEL.subject(request_id=request_id), CANCEL, cancelled)
    await Discovery(bus, who, lambda: {"a": 1}).start()
    for reason in ("client", "bad", "client"):
        await bus.request(
            CANCEL.subject(request_id=request_id),
            json.dumps({"type": "cancel", "request_id": request_id, "reason": reason}).encode(),
            timeout_s=2,
        )
    stats = await ask(bus, "STATS", who.name, who.id)
    (endpoint,) = stats["endpoints"]

    assert (3, 1, "invalid_request") == (
        endpoint["num_requests"],
        endpoint["num_errors"],
        endpoint["last_error"],
    )
    assert {"a": 1} == endpoint["data"]
    assert 0 < endpoint["average_processing_time"] <= endpoint["processing_time"] < 10**9


async def test_who_has_left_is_not_found(bus: Bus) -> None:
    who = identity()
    discovery = Discovery(bus, who)
    await discovery.start()
    await discovery.stop()
    with pytest.raises(Exception, match="nobody listens"):
        await ask(bus, "PING", who.name)


@pytest.fixture
async def stranger(up: "subprocess.Popen[str]") -> AsyncIterator[Client]:
    """A client of nats-py's own, on a stack of real processes."""
    url = await asyncio.to_thread(url_of, up)
    client = await nats.connect(url, **operator_access(url).connect_options(url))
    yield client
    await client.close()


async def gathered(client: Client, verb: str, parse: Callable[[Any], Any]) -> dict[str, Any]:
    """Ask everybody as `nats micro` does, and return the answers by role."""
    inbox, found = client.new_inbox(), []
    subscription = await client.subscribe(inbox)
    await client.publish(f"$SRV.{verb}", b"", reply=inbox)
    try:
        while True:
            message = await subscription.next_msg(timeout=1)
            found.append(parse(json.loads(message.data)))
    except nats.errors.TimeoutError:
        await subscription.unsubscribe()
    assert {VERSION} == {each.version for each in found}
    return {each.name.removeprefix("slipstream-"): each for each in found}


@pytest.mark.nats
@pytest.mark.timeout(90)
async def test_every_service_of_a_stack_is_found_by_a_client_of_micro_services(
    stranger: Client,
) -> None:
    roles = {"scheduler", "kv", "prefill", "decode", "draft", "gateway"}
    pings = await gathered(stranger, "PING", ServicePing.from_dict)
    infos = await gathered(stranger, "INFO", ServiceInfo.from_dict)
    before = await gathered(stranger, "STATS", ServiceStats.from_dict)
    body = {"prompt": "Hello", "max_tokens": 5, "temperature": 0}
    await stranger.request(GENERATE.subject(), json.dumps(body).encode(), timeout=10)
    body["temperature"] = -1
    await stranger.request(GENERATE.subject(), json.dumps(body).encode(), timeout=10)
    after = await gathered(stranger, "STATS", ServiceStats.from_dict)

    assert roles == pings.keys() == infos.keys() == after.keys()
    assert [pings[role].id for role in roles] == [after[role].id for role in roles]
    assert set(MANAGER_VERBS) == {each.name for each in infos["kv"].endpoints}
    assert {GENERATE.wildcard, GENERATE_MODEL.wildcard} <= {
        each.subject for each in infos["scheduler"].endpoints
    }
    (generate,) = (
        each for each in after["scheduler"].endpoints if each.subject == GENERATE.subject()
    )
    assert (2, 1, "invalid_request", "") == (
        generate.num_requests,
        generate.num_errors,
        generate.last_error,
        generate.queue_group,
    )
    tokens = [
        each["decode"].endpoints[0].data["slipstream_output_tokens_total"]
        for each in (before, after)
    ]
    assert [0, 5] == tokens
    assert 0 < after["kv"].endpoints[0].data["slipstream_kv_blocks"]["free"]
    # Nothing is asked of a gateway over NATS, and still it tells what it counts.
    assert after["gateway"].endpoints[0].data["slipstream_uptime_seconds"] > 0
