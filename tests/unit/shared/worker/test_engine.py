"""The engine's thread waits for work, and in a pause gives memory back."""

import asyncio
from collections.abc import Iterator

import pytest

from slipstream.shared.worker import engine
from slipstream.shared.worker.engine import EngineThread


class Runner:
    """Counts its rests."""

    vocab_size = num_forwards = num_rests = 0
    numerics = "none"
    counters = None

    def forward(self, batch: object) -> None:
        raise NotImplementedError

    def rest(self) -> None:
        self.num_rests += 1

    def close(self) -> None:
        pass


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def thread(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineThread]:
    monkeypatch.setattr(engine, "PAUSE_S", 0.05)
    opened = EngineThread(runner)  # type: ignore[arg-type] # a stand-in that computes nothing
    yield opened
    opened.close()


async def test_a_pause_is_one_rest_however_long(thread: EngineThread, runner: Runner) -> None:
    work = asyncio.Event()
    waiting = asyncio.create_task(thread.wait(work))
    await asyncio.sleep(0.3)

    assert 1 == runner.num_rests
    assert not waiting.done()
    work.set()
    await waiting


async def test_work_that_comes_soon_is_no_pause(thread: EngineThread, runner: Runner) -> None:
    work = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, work.set)

    await thread.wait(work)
    await thread.wait(work)

    assert 0 == runner.num_rests
