"""A manager's word that a worker has died: what it held goes on, and whose step it was is noted."""

from typing import Any

from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import WorkerDeath

from .scheduler_office import FINISHED, Office, R, running
from .scheduler_samples import Worker, ended, held, until


async def die(office: Office, worker: Worker, attempt: int | None) -> None:
    """Have a manager tell that a worker died, in a step of an attempt or in none."""
    in_step = [] if attempt is None else [(R, attempt)]
    death = WorkerDeath(worker_id=worker.worker_id, epoch=1, in_step=in_step)
    await office.report("manager", "kv", deaths=[death])


async def on_the_next(office: Office, number: int) -> Worker:
    """Return a new worker, on which the request's next attempt has begun."""
    worker = await office.worker(f"d{number}")
    await until(lambda: worker.jobs)
    await office.report(worker, held=[held(attempt=number)])
    return worker


async def test_what_a_dead_worker_held_goes_on_without_waiting_for_its_silence(
    office: Office,
) -> None:
    _, worker = await running(office)
    await office.report(worker, held=[held(next_index=2, token_ids=PackedInts([5, 6]))])
    await die(office, worker, None)
    successor = await on_the_next(office, 2)

    assert [5, 6] == list(successor.jobs[0].output_token_ids)
    assert not office.fleet.has(worker.worker_id)
    assert [] == office.codes


async def test_the_third_death_in_a_step_of_its_own_ends_a_request(office: Office) -> None:
    record, worker = await running(office)
    was_alone = [worker.jobs[0].is_alone]
    for number in (2, 3):
        await die(office, worker, number - 1)
        worker = await on_the_next(office, number)
        was_alone.append(worker.jobs[0].is_alone)
    await die(office, worker, 3)
    await until(lambda: office.codes)

    assert [False, False, True] == was_alone
    assert ["worker_crashed"] == office.codes
    assert {1, 2, 3} == record.charged_attempts
    office.assert_empty()


async def test_deaths_outside_of_its_steps_are_no_ones_fault(office: Office) -> None:
    _, worker = await running(office)
    for number in range(2, 8):
        await die(office, worker, None)
        worker = await on_the_next(office, number)
        assert not worker.jobs[0].is_alone

    assert [] == office.codes


async def test_a_death_that_is_told_again_is_charged_once(office: Office) -> None:
    record, worker = await running(office)
    for _ in range(4):
        await die(office, worker, 1)
    await on_the_next(office, 2)
    await die(office, worker, 1)

    assert ({1}, 2) == (record.charged_attempts, record.attempt)
    assert [] == office.codes


async def test_a_charge_that_comes_late_still_ends_the_request(office: Office) -> None:
    record, worker = await running(office)
    for number in (2, 3):
        await die(office, worker, number - 1)
        worker = await on_the_next(office, number)
    await office.report(worker, ended=[ended(attempt=3, code="lease_lost")])
    await until(lambda: len(worker.jobs) == 2)
    await die(office, worker, 3)
    await until(lambda: office.codes)

    assert ["worker_crashed"] == office.codes
    assert 3 == len(record.charged_attempts)


async def test_an_ending_told_before_the_death_counts(office: Office) -> None:
    """The last report of a worker that stops may come behind its manager's."""
    _, worker = await running(office)
    await die(office, worker, None)
    late: dict[str, Any] = {"ended": [ended(**FINISHED)]}
    await office.report(worker, **late)

    assert [] == office.codes
    assert not office.fleet.has(WorkerId("d"))
    office.assert_empty()
