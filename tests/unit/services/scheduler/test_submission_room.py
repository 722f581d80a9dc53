"""Submissions that find no room: they wait, and no queue is long enough to bury one."""

import asyncio

import pytest

from slipstream.shared.messages.common import Failed
from slipstream.shared.scheduling.door import TooLate

from .scheduler_samples import until
from .submission_office import SubmissionOffice, completion


@pytest.fixture
async def office() -> SubmissionOffice:
    return await SubmissionOffice(max_num_deliveries=3).open()


async def test_a_full_queue_is_waited_for(office: SubmissionOffice) -> None:
    office.front.is_full = True
    message = await office.submit()
    serving = office.serve(message)
    await until(office.desk._door.locked)
    office.front.is_full = False
    await serving

    assert completion() == office.ending("seq-1")
    assert 1 == message.num_deliveries


async def test_a_queue_that_stays_full_sends_it_back(office: SubmissionOffice) -> None:
    office.front.is_full = True
    message = await office.submit()
    await office.serve(message)

    assert [] == office.front.opened
    assert [1] == message.delays_s


async def test_a_queue_that_is_too_long_buries_nothing(office: SubmissionOffice) -> None:
    """However often it is taken: then it is kept in hand, until its turn comes."""
    office.front.late = TooLate("about 4000 s", 40_000)
    message = await office.submit()
    await office.serve(message)
    serving = office.serve(await office.take())
    await asyncio.sleep(0.1)

    assert [40] == message.delays_s
    assert not serving.done()
    assert not office.desk._door.locked(), "others may be let in"
    assert [] == office.front.opened, "asking is no refusal"
    assert office.ending("seq-1") is None
    assert message not in office.desk.past_door
    office.stopping.ask()
    await serving
    assert [40, 0] == message.delays_s
    assert [] == office.letters
    assert office.is_idle


async def test_what_is_kept_in_hand_is_served_when_it_is_let_in(office: SubmissionOffice) -> None:
    office.front.late = TooLate("a little", 20)
    message = await office.submit()
    message.num_deliveries = 3
    serving = office.serve(message)
    await asyncio.sleep(0.1)
    assert not serving.done()
    office.front.late = None
    await serving

    assert completion() == office.ending("seq-1")
    assert 1 == len(office.front.opened)


async def test_what_is_kept_in_hand_expires_all_the_same() -> None:
    office = await SubmissionOffice(max_num_deliveries=3, max_submission_age_s=60).open()
    office.front.late = TooLate("a little", 20)
    message = await office.submit()
    message.num_deliveries = 3
    serving = office.serve(message)
    await asyncio.sleep(0.1)
    message.age_s = 61.0
    await serving

    assert "expired" == office.ending("seq-1").code
    assert ["expired"] == [letter.reason for letter in office.letters]


async def test_a_submission_is_judged_by_what_it_says_of_itself(office: SubmissionOffice) -> None:
    body = b'{"prompt": "x", "tenant": "t", "latency_class": "standard", "deadline_ms": 5000}'
    for payload in (b'{"prompt": "x"}', body, b'{"prompt": "x", "deadline_ms": 0}'):
        await office.serve(await office.submit(payload))
    judged = [(each.tenant, each.latency_class, each.deadline_ms) for each in office.front.judged]

    assert [("", "batch", 3_600_000), ("t", "standard", 5000)] == judged
    assert 3 == len(office.front.opened), "what is out of range is refused by name"


async def test_more_choices_than_ever_fit_are_not_waited_for() -> None:
    office = await SubmissionOffice(max_num_waiting=2).open()
    messages = [await office.submit(b'{"prompt": "x", "n": %d}' % n) for n in (3, 99)]
    for message in messages:
        await office.serve(message)

    assert [[1], []] == [message.delays_s for message in messages]
    assert [b'{"prompt": "x", "n": 99}'] == [each.payload for each in office.front.opened]


async def test_an_interactive_request_that_is_faster_is_no_refusal(
    office: SubmissionOffice,
) -> None:
    office.front.refusals = [Failed(code="overloaded", message="m")]
    await office.serve(await office.submit())

    assert completion() == office.ending("seq-1")
    assert 2 == len(office.front.opened)
