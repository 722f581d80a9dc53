"""What a bus knows of its connection: a clock that can stand still, and what it may not do."""

import asyncio
import time

import pytest

from slipstream.shared.bus import connection as connection_module
from slipstream.shared.bus.connection import Connection
from slipstream.shared.errors import NotPermittedError
from slipstream.shared.rarely import Rarely


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(connection_module.time, "monotonic", lambda: now[0])
    return now


def test_the_clock_stands_still_without_a_connection(clock: list[float]) -> None:
    connection = Connection()
    times = [connection.now()]
    clock[0] += 5
    connection.lost()
    clock[0] += 40
    connection.lost()
    times.append(connection.now())
    connection.back()
    connection.back()
    times.append(connection.now())
    clock[0] += 1
    times.append(connection.now())

    assert [100.0, 105.0, 105.0, 106.0] == times
    assert 1 == connection.num_returns


def test_it_is_settled_a_while_after_the_last_return(clock: list[float]) -> None:
    connection = Connection()
    seen = [connection.is_settled(5)]
    connection.lost()
    seen.append(connection.is_settled(5))
    connection.back()
    clock[0] += 4
    seen.append(connection.is_settled(5))
    clock[0] += 1
    seen.append(connection.is_settled(5))

    assert [True, False, False, True] == seen


async def test_waiting_for_it_has_an_end() -> None:
    connection = Connection()
    connection.lost()
    assert not await connection.wait_up(0.01)
    waiting = asyncio.create_task(connection.wait_up(10))
    await asyncio.sleep(0)
    connection.back()

    assert await waiting


def test_what_was_refused_is_tried_again_after_a_while(clock: list[float]) -> None:
    connection = Connection()
    connection.refused("a.b")
    connection.check_permitted("a.c")
    with pytest.raises(NotPermittedError, match=r"publish on a\.b"):
        connection.check_permitted("a.b")
    clock[0] += 31
    connection.check_permitted("a.b")


def test_lines_that_repeat_are_counted() -> None:
    rarely = Rarely(10)
    now = time.monotonic()
    told = [rarely.is_due("a", now + seconds) for seconds in (0, 1, 2, 11)]

    assert [0, None, None, 2] == told
    assert 0 == rarely.is_due("b", now)
