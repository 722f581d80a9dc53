"""A stream that is asked for again is sent by who has it, or said to be in."""

from typing import Any

from slipstream.services.scheduler.answers import Answers
from slipstream.services.scheduler.front import Front
from slipstream.services.scheduler.metrics import SchedulerMetrics
from slipstream.services.scheduler.relay import Relay
from slipstream.services.scheduler.succession import ALONE
from slipstream.shared.bus.bus import Incoming
from slipstream.shared.bus.subjects import DECODE
from slipstream.shared.messages.codec import decoder_of
from slipstream.shared.messages.common import Accepted
from slipstream.shared.messages.generate import Resume
from slipstream.shared.telemetry.prometheus_meter import PrometheusMeter
from slipstream.shared.telemetry.tracing import Tracer

from .scheduler_office import Office, R, running
from .scheduler_samples import INBOX, make_record, until


def front_of(office: Office) -> Front:
    unused: Any = None
    return Front(
        office.bus,
        Tracer(),
        "fake",
        unused,
        Answers(office.bus, "fake"),
        office.desk,
        office.watch,
        SchedulerMetrics(PrometheusMeter()),
        Relay(office.bus, ALONE),
    )


async def resumes_of(office: Office) -> list[Resume]:
    """Return what its decode worker is asked for."""
    found: list[Resume] = []

    async def take(incoming: Incoming) -> None:
        message = decoder_of(DECODE.message).decode(incoming.payload)
        if isinstance(message, Resume):
            found.append(message)

    await office.bus.subscribe(DECODE.subject(worker_id="d"), take)
    return found


async def test_a_worker_that_has_not_got_the_job_yet_is_not_asked_for_its_stream(
    office: Office,
) -> None:
    decode = await office.worker("d")
    decode.is_silent = True  # the job is on its way
    office.desk.open(make_record(is_streamed=True))
    await until(lambda: decode.jobs)
    asked = await resumes_of(office)

    refused = await front_of(office).resume(Resume(request_id=R, reply=INBOX), "msgpack")
    await office.bus.flush()

    assert refused is None
    assert [] == asked
    assert isinstance(office.answers[-1], Accepted)


async def test_a_worker_that_has_it_is(office: Office) -> None:
    await running(office)
    asked = await resumes_of(office)

    await front_of(office).resume(Resume(request_id=R, reply=INBOX, from_index=3), "msgpack")

    await until(lambda: asked)
    assert 3 == asked[0].from_index
