"""A scheduler whose waits are short."""

from collections.abc import AsyncIterator

import pytest

from slipstream.services.scheduler import dispatch as dispatch_module
from slipstream.services.scheduler import submission_desk, submission_endings
from slipstream.services.scheduler import watch as watch_module

from .scheduler_office import Office


@pytest.fixture
async def office(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    monkeypatch.setattr(dispatch_module, "_ANSWER_S", 0.05)
    monkeypatch.setattr(dispatch_module, "_CANCEL_S", 0.05)
    monkeypatch.setattr(watch_module, "_PROBE_S", 0.05)
    made = await Office().open()
    yield made
    await made.close()


@pytest.fixture(autouse=True)
def short_waits_of_submissions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK_S", "_ROOM_REST_S"):
        monkeypatch.setattr(submission_desk, name, 0.01)
    monkeypatch.setattr(submission_endings, "_STORE_REST_S", 0.01)
    monkeypatch.setattr(submission_desk, "_ARRIVAL_S", 0.05)
    monkeypatch.setattr(submission_desk, "_ROOM_S", 0.1)
