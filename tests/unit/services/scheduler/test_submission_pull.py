"""Submissions are taken only while there is room for them, and trouble with the storage passes."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from slipstream.services.scheduler import submissions as submissions_module
from slipstream.services.scheduler.submissions import Submissions, limits_of
from slipstream.shared.bus.durable import DurableLimits, StorageError
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.bus.subjects import SUBMIT
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.scheduling.door import TooLate
from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.prometheus_meter import PrometheusMeter

from .scheduler_samples import make_config, until
from .submission_office import ScriptedFront, completion


class Entrance:
    """The durable entrance on a bus of its own."""

    def __init__(self, **config: Any) -> None:
        self.bus = MemoryBus()
        self.durable = self.bus.durable()
        self.front = ScriptedFront(self.bus)
        self.watch = SimpleNamespace(knows_decode_worker=True)
        self.front.watch = self.watch  # type: ignore[attr-defined] # what is asked of it
        self.meter = PrometheusMeter()
        self.submissions = Submissions(
            make_config(**config),
            self.bus,
            self.front,  # type: ignore[arg-type] # as above
            self.meter,
        )

    async def submit(self, num_requests: int = 1) -> None:
        for _ in range(num_requests):
            await self.durable.publish(SUBMIT.subject(), b'{"prompt": "x"}')

    @property
    def num_waiting(self) -> int:
        return len(self.durable.queue.waiting)

    def metric(self, state: str) -> float | None:
        labels = {"state": state}
        return self.meter.registry.get_sample_value(metric_names.SUBMISSIONS.name, labels)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_TAKE_S", "_REST_S", "_TROUBLE_REST_S"):
        monkeypatch.setattr(submissions_module, name, 0.01)
    monkeypatch.setattr(submissions_module, "_COUNT_S", 0.0)


@pytest.fixture
async def entrance() -> AsyncIterator[Entrance]:
    made = Entrance(max_num_submissions=3)
    await made.submissions.start()
    yield made
    await made.submissions.stop(1.0)


async def test_submissions_are_served(entrance: Entrance) -> None:
    await entrance.submit(10)
    await until(lambda: len(entrance.durable.results.entries) == 10)
    await until(lambda: not entrance.submissions.tasks)

    assert 0 == entrance.num_waiting
    assert {} == entrance.durable.queue.taken


async def test_no_more_are_in_hand_than_may_be(entrance: Entrance) -> None:
    entrance.front.answer = None
    await entrance.submit(10)
    await until(lambda: len(entrance.front.opened) == 3)
    await asyncio.sleep(0.05)
    before = (len(entrance.front.opened), entrance.num_waiting, entrance.metric("in_hand"))
    await until(lambda: entrance.metric("waiting") == 7)
    await entrance.front.say(completion(), 0)
    await until(lambda: len(entrance.front.opened) == 4)

    assert (3, 7, 3) == before
    assert 3 == entrance.metric("taken")


async def test_nothing_is_taken_without_room(entrance: Entrance) -> None:
    entrance.front.is_full = True
    await asyncio.sleep(0.05)  # what was asked for before
    await entrance.submit(2)
    await asyncio.sleep(0.05)
    before = entrance.num_waiting
    entrance.front.is_full = False
    await until(lambda: len(entrance.durable.results.entries) == 2)

    assert 2 == before


async def test_nothing_is_taken_that_would_wait_too_long(entrance: Entrance) -> None:
    """To be taken and put back costs a delivery, and says nothing of the submission."""
    entrance.front.late = TooLate("about 4000 s", 40_000)
    await entrance.submit(2)
    await asyncio.sleep(0.1)
    assert 2 == entrance.num_waiting
    assert [] == entrance.front.opened
    entrance.front.late = None
    await until(lambda: len(entrance.front.opened) == 2)

    assert {"batch"} == {each.latency_class for each in entrance.front.judged}


async def test_room_is_counted_for_those_that_will_want_it(entrance: Entrance) -> None:
    """The queue has one place: of many only one is taken at a time."""
    asked: list[int] = []

    def has_room(num_requests: int = 1, _num_bytes: int = 0) -> bool:
        asked.append(num_requests)
        return num_requests == 1

    entrance.front.has_room = has_room  # type: ignore[method-assign] # one place
    await entrance.submit(5)
    await until(lambda: len(entrance.durable.results.entries) == 5)

    assert 2 in asked


async def test_what_has_its_place_in_the_queue_wants_no_second_one(entrance: Entrance) -> None:
    """The queue has one place, which each leaves again: then a worker has it."""
    entrance.front.has_room = (  # type: ignore[method-assign] # one place
        lambda num_requests=1, _num_bytes=0: num_requests == 1
    )
    entrance.front.answer = None
    await entrance.submit(3)
    await until(lambda: len(entrance.front.opened) == 3)

    assert 3 == len(entrance.submissions.tasks)


def troubles_in(logs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what was said to be the matter. Any: fields of log lines."""
    return [each["error"] for each in logs if each["event"] == "submissions_unavailable"]


async def test_trouble_that_lasts_is_logged_once(entrance: Entrance) -> None:
    """The queue and the streams each have their own words for it."""
    num_tries = 0

    async def fail(_limits: DurableLimits) -> None:
        nonlocal num_tries
        num_tries += 1
        raise StorageError("no streams")

    entrance.durable.ensure = fail  # type: ignore[method-assign] # as said
    with capture_logs() as logs:
        entrance.durable.queue.is_broken = True
        await until(lambda: num_tries > 3)

    assert ["broken by the test", "no streams"] == troubles_in(logs)


async def test_trouble_that_comes_again_is_logged_again(entrance: Entrance) -> None:
    with capture_logs() as logs:
        for number in range(1, 3):
            entrance.durable.queue.is_broken = True
            await until(lambda number=number: len(troubles_in(logs)) == number)
            entrance.durable.queue.is_broken = False
            await entrance.submit()
            await until(lambda number=number: len(entrance.durable.results.entries) == number)

    assert ["broken by the test"] * 2 == troubles_in(logs)


async def test_nothing_is_taken_without_a_decode_worker(entrance: Entrance) -> None:
    entrance.watch.knows_decode_worker = False
    await asyncio.sleep(0.05)
    await entrance.submit()
    await asyncio.sleep(0.05)
    before = entrance.num_waiting
    entrance.watch.knows_decode_worker = True
    await until(lambda: entrance.durable.results.entries)

    assert 1 == before


async def test_storage_that_comes_back_is_made_again(entrance: Entrance) -> None:
    num_before = entrance.durable.num_ensured
    entrance.durable.queue.is_broken = True
    await until(lambda: entrance.durable.num_ensured > num_before)
    entrance.durable.queue.is_broken = False
    await entrance.submit()
    await until(lambda: entrance.durable.results.entries)

    assert 0 == entrance.num_waiting


async def test_a_stop_takes_no_more_and_puts_back(entrance: Entrance) -> None:
    entrance.front.answer = None
    await entrance.submit(3)
    await until(lambda: len(entrance.front.opened) == 3)
    await entrance.submissions.stop(1.0)
    await entrance.submit()

    assert 4 == entrance.num_waiting
    assert {} == entrance.durable.queue.taken
    assert set() == entrance.submissions.tasks


async def test_what_does_not_end_does_not_hold_up_a_stop(entrance: Entrance) -> None:
    async def hang(*_arguments: Any, **_options: Any) -> None:
        await asyncio.Event().wait()

    entrance.front.open_request = hang  # type: ignore[method-assign] # stuck
    await entrance.submit()
    await until(lambda: entrance.submissions.tasks)
    async with asyncio.timeout(2):
        await entrance.submissions.stop(0.05)

    assert set() == entrance.submissions.tasks


async def test_storage_that_is_not_there_yet_is_no_error() -> None:
    entrance = Entrance()
    original, num_tries = entrance.durable.ensure, 0

    async def fail_once(limits: DurableLimits) -> None:
        nonlocal num_tries
        num_tries += 1
        if num_tries == 1:
            entrance.durable.queue.is_broken = True
            raise StorageError("not yet")
        entrance.durable.queue.is_broken = False
        await original(limits)

    entrance.durable.ensure = fail_once  # type: ignore[method-assign] # as said
    await entrance.submissions.start()
    await until(lambda: num_tries > 1)
    await entrance.submit()
    await until(lambda: entrance.durable.results.entries)
    await entrance.submissions.stop(1.0)

    assert limits_of(make_config()) == entrance.durable.limits


async def test_streams_that_can_not_be_used_end_the_start() -> None:
    entrance = Entrance()

    async def refuse(_limits: DurableLimits) -> None:
        raise ConfigurationError("of another kind")

    entrance.durable.ensure = refuse  # type: ignore[method-assign] # as said
    with pytest.raises(ConfigurationError, match="of another kind"):
        await entrance.submissions.start()
    await entrance.submissions.stop(1.0)


async def test_none_are_taken_where_none_are_wanted() -> None:
    entrance = Entrance(max_num_submissions=0)
    await entrance.submissions.start()
    await entrance.submit()
    await asyncio.sleep(0.05)
    await entrance.submissions.stop(1.0)

    assert 1 == entrance.num_waiting
    assert 0 == entrance.durable.num_ensured


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_submissions", -1),
        ("max_num_submissions", 4097),
        ("max_num_deliveries", 0),
        ("max_submission_age_s", 0),
        ("redelivery_s", 0.1),
        ("max_num_queued", 0),
        ("max_queued_bytes", 1000),
        ("result_keep_s", 0),
        ("max_result_bytes", 1000),
        ("dead_keep_s", 0),
        ("max_dead_bytes", 1000),
    ],
)
def test_settings_have_bounds(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"--{name.replace('_', '-')} is .* must lie in"):
        make_config(**{name: value})


def test_the_default_limits_are_the_default_settings() -> None:
    limits = limits_of(make_config())

    assert DurableLimits(max_message_bytes=limits.max_message_bytes) == limits
