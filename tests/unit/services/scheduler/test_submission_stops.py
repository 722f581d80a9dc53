"""A scheduler that stops puts back what has no answer, and keeps what has one."""

import asyncio

import pytest

from slipstream.shared.bus.memory_durable import MemoryMessage
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import REPLACED, Completion

from .scheduler_samples import until
from .submission_office import SubmissionOffice, completion

KEYED = b'{"prompt": "x", "request_key": "k"}'


@pytest.fixture
async def office() -> SubmissionOffice:
    return await SubmissionOffice().open()


async def test_a_stop_puts_back_at_once_what_runs(office: SubmissionOffice) -> None:
    office.front.answer = None
    message = await office.submit()
    serving = office.serve(message)
    await until(lambda: office.front.held)
    office.stopping.ask()
    await serving

    assert [0] == message.delays_s
    assert [REPLACED] == [each.reason for each in office.front.cancelled]
    assert office.ending("seq-1") is None


async def stopped(office: SubmissionOffice, answer: Completion | Failed) -> MemoryMessage:
    """Stop while a submission runs, which is answered before its cancel is."""
    office.front.answer = None
    message = await office.submit()
    serving = office.serve(message)
    await until(lambda: office.front.held)

    async def slowly(_cancel: object) -> None:
        await office.front.say(answer)
        await office.bus.flush()

    office.front.cancel = slowly  # type: ignore[method-assign] # as said
    office.stopping.ask()
    await serving
    return message


async def test_a_stop_keeps_an_answer_that_is_there(office: SubmissionOffice) -> None:
    message = await stopped(office, completion())

    assert completion() == office.ending("seq-1")
    assert message.is_acked


async def test_what_a_stop_cancels_has_not_failed(office: SubmissionOffice) -> None:
    message = await stopped(office, Failed(code="cancelled", message="m"))

    assert office.ending("seq-1") is None
    assert [0] == message.delays_s


async def test_a_stop_puts_back_what_waits_for_room_or_its_turn(office: SubmissionOffice) -> None:
    office.front.is_full = True
    messages = [await office.submit(KEYED), await office.submit(KEYED), await office.submit()]
    tasks = [office.serve(message) for message in messages]
    await until(office.desk._door.locked)
    office.stopping.ask()
    await asyncio.gather(*tasks)

    assert [[0]] * 3 == [message.delays_s for message in messages]
    assert [] == office.front.opened
