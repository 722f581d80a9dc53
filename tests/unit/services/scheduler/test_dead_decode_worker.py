"""A prefill worker that finds nobody to hand over to is not to blame: the next attempt is."""

from slipstream.shared.ids import WorkerId

from .scheduler_office import Office
from .scheduler_samples import ended, make_record, until


async def test_an_attempt_whose_decode_worker_was_gone_goes_to_another_one(office: Office) -> None:
    dead, alive = await office.worker("d1"), await office.worker("d2")
    prefill = await office.worker("p", "prefill")
    record = make_record()
    office.desk.open(record)
    await until(lambda: prefill.jobs)
    assert dead.worker_id == prefill.jobs[0].decode_worker_id

    await office.report(prefill, ended=[ended(code="no_responders")])
    await until(lambda: len(prefill.jobs) == 2)

    assert alive.worker_id == prefill.jobs[1].decode_worker_id
    assert not record.avoid, "it may come back; until it reports nothing is placed there"
    assert 0 == record.num_failures
    open_workers = office.fleet.least_busy("decode", max_num=9)
    assert [WorkerId("d2")] == [each.worker_id for each in open_workers]
