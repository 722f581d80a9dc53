"""Damaged bytes on every subject of running services: each refuses them, and goes on."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from slipstream.shared.bus.endpoint import call, call_kv
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import (
    CANCEL,
    EVENT,
    GENERATE,
    GENERATE_MODEL,
    KV,
    KV_DATA,
    MANAGER_VERBS,
    REPORT,
    RESUME,
    SUBMIT,
    WORKER_TOPICS,
)
from slipstream.shared.messages.generate import Completion
from slipstream.shared.messages.kv import Audit, Audited
from slipstream.shared.messages.reports import ReportRequest, WorkerReport

from .service_stack import ALL, Client, ServiceStack, until, until_empty

pytestmark = pytest.mark.nats

GOLDEN = Path(__file__).parents[1] / "wire/golden"
NUM_EACH = 30
# Nobody's messages but those of services stand here, so what their types allow is believed.
DAMAGED_ONLY = 4  # of its bytes


def samples() -> list[bytes]:
    packed = [bytes.fromhex(path.read_text()) for path in sorted(GOLDEN.glob("*.hex"))]
    return [*packed, *(path.read_bytes() for path in sorted(GOLDEN.glob("*.json")))]


def damaged(random_: random.Random, sample: bytes) -> bytes:
    """Return bytes that begin as a message and are none any more."""
    data = bytearray(sample)
    for _ in range(random_.randrange(1, DAMAGED_ONLY)):
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
    return bytes(data[: random_.randrange(1, len(data) + 1)])


def subjects_of(stack: ServiceStack) -> list[str]:
    """Return every subject that one of the services listens on."""
    host_id = stack.one("kv").host.host_id
    workers = [
        topic.subject(worker_id=stack.one(role).worker_id) for role, topic in WORKER_TOPICS.items()
    ]
    return [
        GENERATE.subject(),
        GENERATE_MODEL.subject(model="fake"),
        CANCEL.subject(request_id="x"),
        RESUME.subject(request_id="x"),
        *workers,
        *(KV.subject(host_id=host_id, verb=verb) for verb in MANAGER_VERBS),
        KV_DATA.subject(host_id=host_id),
        REPORT.subject(worker_id="nobody"),
        EVENT.subject(role="kv"),
        SUBMIT.subject(),
    ]


async def send_damaged(stack: ServiceStack, bus: NatsBus, num_each: int) -> None:
    """Publish to all subjects, with an inbox that takes what is answered."""
    random_, known, inbox = random.Random(5), samples(), bus.new_inbox()
    for subject in subjects_of(stack):
        for _ in range(num_each):
            await bus.publish(subject, damaged(random_, random_.choice(known)), reply=inbox)
    await bus.flush()


async def check_alive(stack: ServiceStack, client: Client) -> None:
    """Each role answers, and the pipeline as a whole does."""
    for role, topic in WORKER_TOPICS.items():
        worker_id = stack.one(role).worker_id
        report = await call(client.bus, topic, ReportRequest(), timeout_s=10, worker_id=worker_id)
        assert isinstance(report, WorkerReport)
    host_id = stack.one("kv").host.host_id
    assert isinstance(await call_kv(client.bus, host_id, Audit(), timeout_s=10), Audited)
    assert isinstance(await client.ask("Hello", max_tokens=4), Completion)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_services_refuse_damaged_bytes_and_go_on(start: Any, client: Client) -> None:
    stack: ServiceStack = await start(*ALL)
    expected = await client.ask("Hello", max_tokens=4, seed=1)
    with capture_logs() as logs:
        await send_damaged(stack, client.bus, NUM_EACH)
        await check_alive(stack, client)
        await until(lambda: not stack.desk.records, 60)
    again = await client.ask("Hello", max_tokens=4, seed=1)
    broken = [each for each in logs if each["event"] in ("handler_failed", "task_failed")]
    refused = {each["subject"] for each in logs if each["event"] == "message_refused"}

    assert isinstance(expected, Completion)
    assert isinstance(again, Completion)
    assert expected.choices[0].token_ids == again.choices[0].token_ids
    assert [] == broken
    assert len(refused) > 10, "those who refuse say where"
    await until_empty(stack, 60)
    assert all(not process.waiting.done() for process in stack.processes)
    assert asyncio.all_tasks()
