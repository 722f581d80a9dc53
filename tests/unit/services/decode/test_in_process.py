"""The engine without a bus says what the decode worker would, in the worker's own batches."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.services.decode.main import open_in_process
from slipstream.shared.config import DecodeConfig, FakeEngineConfig
from slipstream.shared.ids import RequestId
from slipstream.shared.measure.load.engine import SteppedEngine
from slipstream.shared.messages.packed import PackedInts

_NUM_BLOCKS = 9  # eight that can be used


@pytest.fixture
def config(tmp_path: Path) -> DecodeConfig:
    return DecodeConfig(
        cache_dir=tmp_path / "cache",
        arena_dir=tmp_path,
        engine="fake",
        is_test_mode=True,
        fake=FakeEngineConfig(step_ms=0.0, row_us=0.0, context_token_ns=0.0),
        num_seats=3,
        token_budget=64,
    )


@pytest.fixture
def engine(config: DecodeConfig, tmp_path: Path) -> Iterator[SteppedEngine]:
    with open_in_process(config, tmp_path / "blocks", _NUM_BLOCKS) as opened:
        yield opened


def _run(engine: SteppedEngine) -> tuple[dict[str, int], list[str]]:
    """Return tokens by request, and the order in which requests ended."""
    num_tokens: dict[str, int] = {}
    ended: list[str] = []
    for _ in range(1000):
        if engine.is_idle:
            return num_tokens, ended
        for each in engine.step():
            assert each.error is None
            num_tokens[each.request_id] = num_tokens.get(each.request_id, 0) + each.num_tokens
            if each.is_over:
                ended.append(each.request_id)
    raise AssertionError("the engine never came to an end")


def test_every_request_gets_as_many_tokens_as_it_asks_for(engine: SteppedEngine) -> None:
    """The fake engine checks each KV slot it reads: blocks of two requests would be noticed."""
    prompts = {"a": ([70] * 10, 4), "b": ([80] * 100, 1), "c": ([90] * 33, 30)}
    for name, (token_ids, num_output) in prompts.items():
        engine.add(RequestId(name), PackedInts(token_ids), num_output)

    num_tokens, ended = _run(engine)

    assert {"a": 4, "b": 1, "c": 30} == num_tokens
    assert {"a", "b", "c"} == set(ended)


def test_who_finds_no_seat_or_no_blocks_waits_for_them(engine: SteppedEngine) -> None:
    """Three seats, and blocks for 256 tokens: two of these at a time."""
    for number in range(6):
        engine.add(RequestId(str(number)), PackedInts([70 + number] * 100), 20)

    num_tokens, ended = _run(engine)

    assert dict.fromkeys("012345", 20) == num_tokens
    assert list("012345") == sorted(ended)
    assert {"0", "1"} == set(ended[:2])


def test_what_is_dropped_leaves_all_blocks(engine: SteppedEngine) -> None:
    for _ in range(3):
        engine.add(RequestId("big"), PackedInts([70] * 200), 50)
        engine.step()
        engine.clear()
        assert engine.is_idle

    engine.add(RequestId("whole"), PackedInts([70] * 200), 56)

    assert {"whole": 56} == _run(engine)[0]


def test_the_blocks_lie_in_a_file_that_goes(config: DecodeConfig, tmp_path: Path) -> None:
    directory = tmp_path / "blocks"
    with open_in_process(config, directory, _NUM_BLOCKS):
        assert list(directory.glob("arena.*"))

    assert [] == list(directory.glob("arena.*"))
