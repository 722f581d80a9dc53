"""A dead letter is submitted again under its old key, once, wherever the command is broken off."""

from typing import Any

import pytest

from slipstream.services.cli.dead_letters import Dead, dead_letters, find, requeue
from slipstream.shared.bus.durable import MESSAGE_ID, StorageError
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.memory_durable import MemoryDurable, MemoryMessage
from slipstream.shared.bus.subjects import DEAD, SUBMIT, SUBMIT_MODEL, requeued_key, subject_model
from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.common import Failed, Timings, Usage
from slipstream.shared.messages.generate import Completion
from slipstream.shared.messages.reports import DeadLetter
from slipstream.shared.messages.submission import identify, result_key

BODY = b'{"prompt": "x"}'
ANSWER = encode(
    Completion(
        request_id=RequestId("r"),
        attempt=1,
        choices=[],
        usage=Usage(num_prompt_tokens=1, num_output_tokens=1),
        timings=Timings(),
    ),
    "json",
)


@pytest.fixture
def durable() -> MemoryDurable:
    return MemoryBus().durable()


async def die(
    durable: MemoryDurable, key: str = "seq-7", reason: str = "lost", subject: str = SUBMIT.pattern
) -> Dead:
    """Leave a failure and its letter, as the scheduler does."""
    await durable.results.create(key, encode(Failed(code=reason, message="why"), "json"), {})
    letter = DeadLetter(reason, BODY, 3, "why", key, subject)
    number = await durable.publish(DEAD.subject(reason=reason), encode(letter))
    found = await find(durable, number)
    assert found is not None
    return found


def only(durable: MemoryDurable) -> MemoryMessage:
    (message,) = durable.queue.waiting
    return message


async def test_it_is_published_with_its_key_and_model_and_the_failure_goes(
    durable: MemoryDurable,
) -> None:
    dead = await die(durable, subject=SUBMIT_MODEL.subject(model="tiny"))
    key = await requeue(durable, dead)
    message = only(durable)

    assert ("seq-7", BODY) == (key, message.payload)
    assert ("seq-7", "tiny") == (requeued_key(message.subject), subject_model(message.subject))
    assert {} == durable.results.entries
    assert [] == durable.dead


async def test_what_dies_again_is_requeued_as_before(durable: MemoryDurable) -> None:
    await requeue(durable, await die(durable, subject=SUBMIT_MODEL.subject(model="tiny")))
    again = only(durable)
    await requeue(durable, await die(durable, subject=again.subject))

    assert [again.subject] * 2 == [each.subject for each in durable.queue.waiting]


@pytest.mark.parametrize("broken", ["publish", "drop"])
async def test_broken_off_and_repeated_it_is_submitted_once(
    durable: MemoryDurable, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    dead = await die(durable)

    async def fail(*_: Any, **__: Any) -> Any:
        raise StorageError("broken by the test")

    with monkeypatch.context() as patch:
        patch.setattr(durable if broken == "publish" else durable.dead_letters, broken, fail)
        with pytest.raises(StorageError):
            await requeue(durable, dead)
    left = await find(durable, dead.sequence)
    assert left is not None
    await requeue(durable, left)

    assert f"requeue-{dead.sequence}" == only(durable).headers[MESSAGE_ID]
    assert [] == durable.dead


async def test_an_answer_that_is_there_is_left_and_nothing_is_computed(
    durable: MemoryDurable,
) -> None:
    dead = await die(durable)
    durable.results.entries.clear()
    await durable.results.create("seq-7", ANSWER, {})
    await requeue(durable, dead)

    assert ANSWER == durable.results.entries["seq-7"].value
    assert ([], []) == (durable.queue.waiting, durable.dead)


async def test_an_answer_that_comes_meanwhile_is_not_removed(
    durable: MemoryDurable, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = await die(durable)
    get = durable.results.get

    async def get_and_be_late(key: str) -> Any:
        stored = await get(key)
        monkeypatch.undo()
        durable.results.entries.clear()
        await durable.results.create(key, ANSWER, {})
        return stored

    monkeypatch.setattr(durable.results, "get", get_and_be_late)
    await requeue(durable, dead)

    assert ANSWER == durable.results.entries["seq-7"].value
    assert [] == durable.queue.waiting


async def test_they_are_listed_by_reason_in_order(durable: MemoryDurable) -> None:
    letters = [await die(durable, f"seq-{n}", ("lost", "expired")[n % 2]) for n in range(5)]

    assert letters == [each async for each in dead_letters(durable)]
    assert letters[1::2] == [each async for each in dead_letters(durable, "expired")]


async def test_a_number_that_no_letter_had_is_no_letter_that_is_gone(
    durable: MemoryDurable,
) -> None:
    first, last = await die(durable, "seq-1"), await die(durable, "seq-2")
    await durable.dead_letters.drop(first.sequence)

    assert await find(durable, first.sequence) is None
    with pytest.raises(InvalidRequestError, match="is none of a dead letter"):
        await find(durable, last.sequence + 1)


async def test_a_letter_of_an_older_scheduler_says_what_to_do(durable: MemoryDurable) -> None:
    with pytest.raises(InvalidRequestError, match="submit its request anew"):
        await requeue(durable, await die(durable, key=""))


def test_a_requeued_request_has_the_key_it_had() -> None:
    body = b'{"prompt": "x", "request_key": "k"}'
    first, conflicting = identify(body, 9, result_key("k")), identify(body, 9, "seq-5")

    assert (result_key("k"),) * 2 == (first.key, first.own_key)
    assert ("seq-5",) * 2 == (conflicting.key, conflicting.own_key)
    assert identify(body, 9).body_digest == conflicting.body_digest
    assert "seq-9" == identify(BODY, 9, "no key").key
