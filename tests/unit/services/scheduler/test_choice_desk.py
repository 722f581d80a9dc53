"""The answers of choices become one, whatever happens to them on the way."""

import asyncio
from typing import Any

import pytest

from slipstream.services.scheduler import choice_desk
from slipstream.services.scheduler.answers import Answers
from slipstream.services.scheduler.choice_desk import ChoiceDesk
from slipstream.services.scheduler.records import RequestRecord
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.common import Failed, Timings, Usage
from slipstream.shared.messages.generate import Choice, Completion
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.telemetry.tracing import Tracer

from .scheduler_samples import INBOX, make_record


class Office:
    """A choice desk on a bus of its own, with a client and whom it cancels."""

    def __init__(self) -> None:
        self.bus = MemoryBus()
        self.cancelled: list[RequestId] = []
        self.heard: list[Any] = []
        self.desk = ChoiceDesk(self.bus, Tracer(), Answers(self.bus, "fake"), self._cancel)

    async def start(self) -> "Office":
        await self.desk.start()
        await self.bus.subscribe(INBOX, self._hear)
        return self

    async def answer(self, record: RequestRecord, text: str = "a") -> None:
        completion = Completion(
            request_id=record.request_id,
            attempt=1,
            choices=[Choice(text=text, token_ids=PackedInts([1]), finish_reason="stop")],
            usage=Usage(num_prompt_tokens=3, num_output_tokens=1),
            timings=Timings(),
        )
        await self.bus.publish(record.reply.subject, encode(completion))

    async def _cancel(self, request_id: RequestId) -> None:
        self.cancelled.append(request_id)

    async def _hear(self, incoming: Incoming) -> None:
        self.heard.append(decoder_of(ClientAnswer).decode(incoming.payload))

    async def until_heard(self) -> Any:
        async with asyncio.timeout(5):
            while not self.heard:
                await asyncio.sleep(0.001)
        (only,) = self.heard
        return only


@pytest.fixture
async def office(monkeypatch: pytest.MonkeyPatch) -> Office:
    monkeypatch.setattr(choice_desk, "_ARRIVAL_S", 0.02)
    return await Office().start()


def plain(num_choices: int = 3) -> RequestRecord:
    return make_record(is_streamed=False, num_choices=num_choices)


def ids(records: list[RequestRecord]) -> list[str]:
    return [record.request_id for record in records]


async def test_a_choice_is_a_request_of_its_own(office: Office) -> None:
    records = office.desk.open(plain())

    assert ["rc0", "rc1", "rc2"] == ids(records)
    assert [0, 1, 2] == [record.choice for record in records]
    assert 3 == len({record.request.sampling.seed for record in records})
    assert [10, 0, 0] == [record.request.num_bytes for record in records], "the bytes wait once"
    assert 3 == len({record.reply.subject for record in records})
    streamed = office.desk.open(make_record("s", num_choices=2))
    assert [INBOX] * 2 == [record.reply.subject for record in streamed]


async def test_answers_are_joined_whichever_comes_first(office: Office) -> None:
    records = office.desk.open(plain())
    for record in reversed(records):
        await office.answer(record, record.request_id)

    answer = await office.until_heard()
    assert ["rc0", "rc1", "rc2"] == [choice.text for choice in answer.choices]


async def test_a_failed_choice_fails_the_request_and_ends_the_others(office: Office) -> None:
    records = office.desk.open(plain())
    failed = Failed(code="deadline_exceeded", message="late", request_id=records[1].request_id)
    await office.bus.publish(records[1].reply.subject, encode(failed))

    answer = await office.until_heard()
    assert ("deadline_exceeded", "r") == (answer.code, answer.request_id)
    for _ in range(5):
        await asyncio.sleep(0)
    assert ids(records) == office.cancelled


async def test_an_answer_that_never_arrives_is_not_waited_for_for_ever(office: Office) -> None:
    """Its worker has sent it: the record is closed, and nobody else will speak."""
    records = office.desk.open(plain())
    await office.answer(records[0])
    for record in records:
        office.desk.closed(record, None)

    answer = await office.until_heard()
    assert ("lost", "r") == (answer.code, answer.request_id)
    assert [] == office.desk.ids_of(RequestId("r"))


async def test_choices_too_large_for_a_message_say_so(office: Office) -> None:
    records = office.desk.open(plain(2))
    office.bus.broker.max_payload = 4096 + 600
    for record in records:
        await office.answer(record, "x" * 300)

    answer = await office.until_heard()
    assert "message_too_large" == answer.code
    assert "stream: true" in answer.message


async def test_records_of_other_requests_are_none_of_its_business(office: Office) -> None:
    office.desk.closed(make_record("other"), None)

    assert [] == office.desk.ids_of(RequestId("other"))
