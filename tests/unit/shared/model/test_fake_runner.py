"""The fake engine: its tokens, its checks of every slot it reads, and its step time."""

import time

import numpy as np
import pytest

from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.model.fake_runner import (
    EOS_TOKEN_ID,
    VOCAB_SIZE,
    FakeCosts,
    FakeKvMismatchError,
    FakeRunner,
    next_token_id,
)
from slipstream.shared.model.runner import ModelRunner, SequenceRows

_NUM_BLOCKS = 12
_PROMPT = list(b"The wind is strong today, so ride behind me and rest a little while you can.")
_TABLE = [4, 0, 9]


def _runner(arena: bytearray | None = None, costs: FakeCosts | None = None) -> FakeRunner:
    layout = KvLayout(num_layers=1, num_kv_heads=1, head_dim=2, kind="fake")
    arena = bytearray(_NUM_BLOCKS * layout.block_bytes) if arena is None else arena
    return FakeRunner(memoryview(arena), layout, _NUM_BLOCKS, costs)


def _rows(
    token_ids: list[int], num_rows: int, block_table: list[int], num_logit_rows: int = 1
) -> SequenceRows:
    return SequenceRows(token_ids, len(token_ids) - num_rows, num_rows, block_table, num_logit_rows)


def test_it_is_a_model_runner() -> None:
    runner: ModelRunner = _runner()

    assert VOCAB_SIZE == runner.vocab_size


@pytest.mark.parametrize("chunk_size", [1, 7, 32, 33, 76])
def test_logits_do_not_depend_on_the_chunks(chunk_size: int) -> None:
    whole = _runner().forward([_rows(_PROMPT, len(_PROMPT), _TABLE, len(_PROMPT))])
    runner = _runner()
    parts = []
    for start in range(0, len(_PROMPT), chunk_size):
        chunk = _PROMPT[start : start + chunk_size]
        token_ids = _PROMPT[: start + len(chunk)]
        parts.append(runner.forward([_rows(token_ids, len(chunk), _TABLE, len(chunk))]))

    assert np.array_equal(whole, np.concatenate(parts))
    assert -(-len(_PROMPT) // chunk_size) == runner.num_forwards


def test_rows_of_a_batch_come_in_its_order() -> None:
    prompts = [_PROMPT, _PROMPT[:5], _PROMPT[10:50]]
    tables = [_TABLE, [1], [7, 8]]
    logits = _runner().forward(
        [_rows(prompt, len(prompt), table) for prompt, table in zip(prompts, tables, strict=True)]
    )

    assert [next_token_id(prompt) for prompt in prompts] == logits.argmax(axis=1).tolist()
    assert np.float32 == logits.dtype


def test_outputs_read_like_text_and_end() -> None:
    """About one token in 256 ends the sequence, the others are letters and spaces."""
    token_ids = [int(t) for t in np.random.default_rng(0).integers(0, 256, 20_000)]
    runner = FakeRunner(
        memoryview(bytearray(625 * 512)), KvLayout(1, 1, 2, kind="fake"), num_blocks=625
    )
    rows = SequenceRows(token_ids, 0, 20_000, range(625), 20_000)
    greedy = runner.forward([rows]).argmax(axis=1)
    num_ends = int((greedy == EOS_TOKEN_ID).sum())

    assert 45 < num_ends < 120, "20,000 tokens should end 78 times, with a deviation of 9"
    letters = bytes(greedy[greedy != EOS_TOKEN_ID].astype(np.uint8)).decode("ascii")
    assert all(letter.isalpha() or letter == " " for letter in letters)


def test_the_hashed_token_has_most_of_the_probability_and_others_some() -> None:
    logits = _runner().forward([_rows(_PROMPT, len(_PROMPT), _TABLE)])[0].astype(np.float64)
    probabilities = np.exp(logits) / np.exp(logits).sum()

    assert 0.8 < probabilities.max() < 0.99


def _prefilled(num_tokens: int = len(_PROMPT)) -> FakeRunner:
    runner = _runner()
    runner.forward([_rows(_PROMPT[:num_tokens], num_tokens, _TABLE, 0)])
    return runner


def test_swapped_blocks_are_caught_at_their_first_position() -> None:
    with pytest.raises(FakeKvMismatchError) as caught:
        _prefilled().forward([_rows([*_PROMPT, 1], 1, [4, 9, 0])])

    assert (32, 9) == (caught.value.position, caught.value.block_id)
    assert _PROMPT[32] == caught.value.expected[0]
    assert _PROMPT[64] == caught.value.found[0]


def test_the_same_tokens_after_another_prefix_are_caught() -> None:
    """A stale block may hold the right tokens: only the checksum of the prefix tells."""
    runner = _runner()
    runner.forward([_rows([1] * 32 + [5] * 32, 64, [3, 6], 0)])
    runner.forward([_rows([2] * 32, 32, [3], 0)])

    with pytest.raises(FakeKvMismatchError) as caught:
        runner.forward([_rows([2] * 32 + [5] * 33, 1, [3, 6, 7])])

    assert (32, 6) == (caught.value.position, caught.value.block_id)
    assert caught.value.expected[0] == caught.value.found[0]


def test_a_block_written_by_another_sequence_since_is_caught() -> None:
    runner = _prefilled()
    runner.forward([_rows([3] * 4, 4, [9])])

    with pytest.raises(FakeKvMismatchError, match="position 64 in block 9"):
        runner.forward([_rows([*_PROMPT, 1], 1, _TABLE)])


def test_claiming_more_computed_tokens_than_were_written_is_caught() -> None:
    with pytest.raises(FakeKvMismatchError, match="position 70 "):
        _prefilled(70).forward([_rows([*_PROMPT, 1], 1, _TABLE)])


def test_rejected_draft_tokens_may_be_overwritten() -> None:
    """A rollback leaves stale slots past the length, which nothing reads."""
    runner = _prefilled(60)
    runner.forward([_rows([*_PROMPT[:60], 9, 9, 9], 3, _TABLE, 3)])

    logits = runner.forward([_rows([*_PROMPT[:60], 9, 8], 1, _TABLE)])

    assert next_token_id([*_PROMPT[:60], 9, 8]) == int(logits[0].argmax())


def test_two_runners_share_an_arena() -> None:
    arena = bytearray(_NUM_BLOCKS * 512)
    _runner(arena).forward([_rows(_PROMPT, len(_PROMPT), _TABLE, 0)])

    logits = _runner(arena).forward([_rows([*_PROMPT, 1], 1, _TABLE)])

    assert next_token_id([*_PROMPT, 1]) == int(logits[0].argmax())


def test_a_step_lasts_as_the_cost_model_says() -> None:
    costs = FakeCosts(step_ms=10, row_us=100, context_token_ns=50_000)
    assert 0.010 + 3 * 100e-6 + 200 * 50e-6 == pytest.approx(costs.seconds(3, 200))

    runner = _runner(costs=FakeCosts(step_ms=20))
    start = time.perf_counter()
    runner.forward([_rows(_PROMPT, len(_PROMPT), _TABLE)])

    assert time.perf_counter() - start >= 0.020
