"""The scheduler's own inbox: one answer a subject, whatever else arrives."""

from structlog.testing import capture_logs

from slipstream.services.scheduler.answer_inbox import AnswerInbox
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.subjects import is_inbox


async def test_each_subject_gets_its_answer() -> None:
    bus = MemoryBus()
    inbox = AnswerInbox(bus)
    await inbox.start()
    (one, first), (two, second) = inbox.expect(), inbox.expect()
    await bus.publish(two, b"2")
    await bus.publish(one, b"1")

    assert (b"1", b"2") == (await first, await second)
    assert is_inbox(one)


async def test_a_second_answer_changes_nothing() -> None:
    bus = MemoryBus()
    inbox = AnswerInbox(bus)
    await inbox.start()
    subject, answer = inbox.expect()
    with capture_logs() as logs:
        for payload in (b"1", b"2"):
            await bus.publish(subject, payload)
        await bus.flush()
        await bus.publish(subject, b"3")
        await bus.flush()

    assert b"1" == await answer
    assert [] == logs


async def test_what_is_given_up_is_forgotten() -> None:
    bus = MemoryBus()
    inbox = AnswerInbox(bus)
    await inbox.start()
    subject, answer = inbox.expect()
    answer.cancel()
    await bus.publish(subject, b"1")
    await bus.flush()

    assert {} == inbox._expected
