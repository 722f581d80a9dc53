"""One submission at a time: whatever happens, one ending, and the message is not lost."""

import asyncio
from typing import Any

import pytest

from slipstream.shared.bus.durable import BODY_DIGEST
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.submission import result_key
from slipstream.shared.telemetry import metric_names

from .scheduler_samples import until
from .submission_office import SubmissionOffice, completion

KEYED = b'{"prompt": "x", "request_key": "k"}'
OTHER = b'{"prompt": "y", "request_key": "k"}'


@pytest.fixture
async def office() -> SubmissionOffice:
    return await SubmissionOffice(max_num_deliveries=3).open()


async def test_an_answer_is_stored_then_the_message_is_acknowledged(
    office: SubmissionOffice,
) -> None:
    message = await office.submit()
    await office.serve(message)

    assert completion() == office.ending("seq-1")
    assert office.durable.results.entries["seq-1"].headers[BODY_DIGEST]
    assert message.is_acked
    assert [] == office.letters
    assert office.is_idle


async def test_the_publishers_headers_reach_the_admission(office: SubmissionOffice) -> None:
    message = await office.submit()
    message.headers = {"traceparent": "t"}
    await office.serve(message)
    (incoming,) = office.front.opened

    assert {"traceparent": "t"} == incoming.headers
    assert message.subject == incoming.subject


async def test_without_the_ending_stored_there_is_no_acknowledgement(
    office: SubmissionOffice,
) -> None:
    message = await office.submit()
    office.front.answer = None
    serving = office.serve(message)
    await until(lambda: office.front.opened)
    office.durable.results.is_broken = True
    await office.front.say(completion())
    await until(lambda: office.num_restored > 2)
    assert not message.is_acked
    office.durable.results.is_broken = False
    await serving

    assert completion() == office.ending("seq-1")
    assert message.is_acked
    assert 1 == len(office.front.opened)


async def test_an_ending_that_is_there_is_not_computed_again(office: SubmissionOffice) -> None:
    first = await office.submit(KEYED)
    await office.serve(first)
    office.front.answer = completion(text="another")
    again = await office.submit(KEYED)
    await office.serve(again)

    assert completion() == office.ending(result_key("k"))
    assert again.is_acked
    assert 1 == len(office.front.opened)


async def test_the_first_ending_wins(office: SubmissionOffice) -> None:
    """Two schedulers had the same message; the slower one leaves what it finds."""
    message = await office.submit()
    office.front.answer = None
    serving = office.serve(message)
    await until(lambda: office.front.opened)
    digest = (await _digest_of(office)) or ""
    first = encode(completion(text="first"), "json")
    await office.durable.results.create("seq-1", first, {BODY_DIGEST: digest})
    await office.front.say(completion(text="second"))
    await serving

    assert completion(text="first") == office.ending("seq-1")
    assert message.is_acked
    assert [] == office.letters


async def _digest_of(office: SubmissionOffice) -> str | None:
    """Return the digest of the plain body, as another desk stores it."""
    other = await SubmissionOffice().open()
    await other.serve(await other.submit())
    return other.durable.results.entries["seq-1"].headers.get(BODY_DIGEST)


async def test_one_key_is_served_one_at_a_time(office: SubmissionOffice) -> None:
    office.front.answer = None
    messages = [await office.submit(KEYED) for _ in range(3)]
    tasks = [office.serve(message) for message in messages]
    await until(lambda: office.front.opened)
    await asyncio.sleep(0.03)
    assert 1 == len(office.front.opened)
    await office.front.say(completion())
    await asyncio.gather(*tasks)

    assert 1 == len(office.front.opened)
    assert all(message.is_acked for message in messages)
    assert office.is_idle


async def test_another_body_under_a_key_is_a_conflict(office: SubmissionOffice) -> None:
    await office.serve(await office.submit(KEYED))
    other = await office.submit(OTHER)
    await office.serve(other)
    conflict = office.ending("seq-2")

    assert ("conflict", "request_key") == (conflict.code, conflict.field)
    assert completion() == office.ending(result_key("k"))
    assert other.is_acked
    assert ["conflict"] == [letter.reason for letter in office.letters]
    assert OTHER == office.letters[0].payload


async def test_a_conflict_with_another_schedulers_answer_is_one_too(
    office: SubmissionOffice,
) -> None:
    office.front.answer = None
    serving = office.serve(await office.submit(OTHER))
    await until(lambda: office.front.opened)
    first = encode(completion(text="first"), "json")
    await office.durable.results.create(result_key("k"), first, {BODY_DIGEST: "others"})
    await office.front.say(completion(text="second"))
    await serving

    assert "conflict" == office.ending("seq-1").code


async def test_what_is_invalid_ends_at_once_as_a_dead_letter(office: SubmissionOffice) -> None:
    office.front.refusals = [Failed(code="invalid_request", message="m", field="f")]
    message = await office.submit(b"{")
    await office.serve(message)
    (letter,) = office.letters

    assert ("invalid_request", "f") == (office.ending("seq-1").code, office.ending("seq-1").field)
    assert message.is_acked
    assert ("invalid_request", b"{", 1, "m") == (
        letter.reason,
        letter.payload,
        letter.num_deliveries,
        letter.message,
    )
    assert 1 == office.meter.registry.get_sample_value(
        metric_names.DEAD.name, {"reason": "invalid_request"}
    )


async def test_what_may_pass_is_put_back_for_longer_each_time(office: SubmissionOffice) -> None:
    office.front.refusals = [Failed(code="no_workers", message="m")] * 2
    message = await office.submit()
    await office.serve(message)
    await office.serve(await office.take())
    assert office.ending("seq-1") is None
    await office.serve(await office.take())

    assert [1, 2] == message.delays_s
    assert completion() == office.ending("seq-1")
    assert [] == office.letters
    assert 2 == office.meter.registry.get_sample_value(metric_names.REDELIVERED.name)


async def test_what_never_passes_ends_as_a_dead_letter(office: SubmissionOffice) -> None:
    office.front.answer = Failed(code="worker_lost", message="gone")
    message = await office.submit()
    await office.serve(message)
    await office.serve(await office.take())
    await office.serve(await office.take())

    assert message.is_acked
    assert "worker_lost" == office.ending("seq-1").code
    assert [("worker_lost", 3)] == [(each.reason, each.num_deliveries) for each in office.letters]


async def test_what_ran_out_of_its_time_in_the_queue_is_put_back(office: SubmissionOffice) -> None:
    """No worker has seen it, so another try is the first."""
    office.front.answer = Failed(code="deadline_exceeded", message="m")
    message = await office.submit()
    await office.serve(message)
    assert office.ending("seq-1") is None
    office.front.answer = completion()
    await office.serve(await office.take())

    assert [1] == message.delays_s
    assert completion() == office.ending("seq-1")
    assert [] == office.letters


async def test_what_ran_out_of_its_time_on_a_worker_ends(office: SubmissionOffice) -> None:
    office.front.answer = Failed(code="deadline_exceeded", message="m", attempt=1)
    message = await office.submit()
    await office.serve(message)

    assert message.is_acked
    assert "deadline_exceeded" == office.ending("seq-1").code
    assert ["deadline_exceeded"] == [letter.reason for letter in office.letters]


async def test_what_was_taken_too_often_is_not_tried(office: SubmissionOffice) -> None:
    """It may be what ends the scheduler."""
    message = await office.submit()
    for _ in range(3):
        office.durable.queue.lose_takers()
        await office.take()
    await office.serve(message)

    assert [] == office.front.opened
    assert "lost" == office.ending("seq-1").code
    assert ["lost"] == [letter.reason for letter in office.letters]
    assert message.is_acked


async def test_what_waited_too_long_is_not_tried() -> None:
    office = await SubmissionOffice(max_submission_age_s=60).open()
    message = await office.submit()
    message.age_s = 61.0
    await office.serve(message)

    assert [] == office.front.opened
    assert ("expired", 60) == (office.ending("seq-1").code, office.ending("seq-1").limit)
    assert message.is_acked


async def test_a_cancelled_request_leaves_no_dead_letter(office: SubmissionOffice) -> None:
    office.front.answer = Failed(code="cancelled", message="m")
    message = await office.submit()
    await office.serve(message)

    assert "cancelled" == office.ending("seq-1").code
    assert message.is_acked
    assert [] == office.letters


async def test_a_dead_letter_that_was_not_written_is_written_by_the_next(
    office: SubmissionOffice,
) -> None:
    office.front.refusals = [Failed(code="invalid_request", message="m")]
    message = await office.submit()
    await office.serve(message)
    letters, office.durable.dead = office.durable.dead, []
    del office.durable._sequence_of["seq-1"]
    office.durable.queue.waiting.append(message)
    await office.serve(await office.take())

    assert 1 == len(letters)
    assert ["invalid_request"] == [letter.reason for letter in office.letters]
    assert 1 == len(office.front.opened)


async def test_an_answer_that_got_lost_is_asked_for_again(office: SubmissionOffice) -> None:
    office.front.answer = None
    message = await office.submit()
    serving = office.serve(message)
    await until(lambda: office.front.held)
    office.front.held.clear()
    await serving

    assert [1] == message.delays_s
    assert office.ending("seq-1") is None
    assert office.is_idle


async def test_what_runs_is_kept(office: SubmissionOffice) -> None:
    short = await SubmissionOffice(redelivery_s=0.5).open()
    short.front.answer = None
    message = await short.submit()
    serving = short.serve(message)
    await until(lambda: message.num_kept > 1)
    await short.front.say(completion())
    await serving
    num_kept = message.num_kept
    await asyncio.sleep(0.4)

    assert num_kept == message.num_kept


async def test_a_message_that_can_not_be_settled_is_left_to_come_again(
    office: SubmissionOffice,
) -> None:
    office.front.answer = None
    message = await office.submit()
    serving = office.serve(message)
    await until(lambda: office.front.opened)
    office.durable.queue.is_broken = True
    await office.front.say(completion())
    await serving
    office.durable.queue.is_broken = False
    office.durable.queue.lose_takers()
    await office.serve(await office.take())

    assert message.is_acked
    assert 1 == len(office.front.opened)


async def test_a_bug_puts_it_back(office: SubmissionOffice) -> None:
    async def fail(*_arguments: Any, **_options: Any) -> None:
        raise RuntimeError("broken")

    office.front.open_request = fail  # type: ignore[method-assign] # the bug
    message = await office.submit()
    await office.serve(message)

    assert [1] == message.delays_s
    assert office.is_idle
