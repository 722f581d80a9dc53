"""The steps that are timed, and whose blocks they touch."""

import numpy as np
import numpy.typing as npt
import pytest

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.kv.layout import BLOCK_SIZE
from slipstream.shared.measure.engine_cells import Cell, Workload, decode, prefill, standard_cells
from slipstream.shared.model.runner import SequenceRows

_CELLS = [prefill(70), decode(1, 40), decode(3, 40), Cell("verify", 1, 40, 4), decode(1, 100)]


class Recorder:
    """Keeps what it was asked to compute."""

    vocab_size = 300
    num_forwards = 0
    numerics = "none"

    def __init__(self) -> None:
        self.batches: list[list[SequenceRows]] = []

    def forward(self, batch: list[SequenceRows]) -> npt.NDArray[np.float32]:
        self.batches.append(batch)
        return np.empty((0, 0), np.float32)

    def close(self) -> None: ...


def test_contexts_of_ours_that_a_model_does_not_have_are_left_out() -> None:
    cells = standard_cells([1, 8], 540, 512, 2048)

    assert [prefill(512), decode(1, 540), decode(8, 540)] == cells[:3]
    assert [4, 8, 16] == [cell.num_rows for cell in cells if cell.phase == "verify"]
    assert decode(1, 128) in cells
    assert decode(1, 4096) not in cells
    assert decode(1, 4096) in standard_cells([1], 540, 512, 8192)


def test_a_context_that_was_asked_for_must_fit() -> None:
    with pytest.raises(ConfigurationError, match="2048 positions"):
        standard_cells([1], 2048, 512, 2048)


def test_sequences_share_no_block_and_lie_scattered() -> None:
    """Else a batch would read the same bytes again and again, from a cache."""
    batch = Workload(_CELLS, 300).batch_of(decode(3, 40))

    tables = [list(rows.block_table) for rows in batch]
    blocks = [block for table in tables for block in table]
    assert [2, 2, 2] == [len(table) for table in tables]
    assert len(blocks) == len(set(blocks))
    assert 0 not in blocks
    assert blocks != sorted(blocks)
    assert len({tuple(rows.token_ids) for rows in batch}) == len(batch)


def test_the_cache_is_filled_as_far_as_any_cell_reads_it() -> None:
    recorder, workload = Recorder(), Workload(_CELLS, 300)

    workload.fill(recorder)

    assert [101, 41, 41] == [batch[0].context_len for batch in recorder.batches]
    assert workload.num_blocks == 1 + 4 + 2 + 2
    tables = [batch[0].block_table for batch in recorder.batches]
    assert set(range(1, workload.num_blocks)) == {block for table in tables for block in table}


def test_a_long_prompt_is_filled_in_chunks_that_follow_one_another() -> None:
    recorder, workload = Recorder(), Workload([prefill(1100)], 300)

    workload.fill(recorder)

    parts = [(batch[0].num_computed_tokens, batch[0].num_rows) for batch in recorder.batches]
    assert [(0, 512), (512, 512), (1024, 76)] == parts


@pytest.mark.parametrize("cell", _CELLS)
def test_a_cell_runs_the_rows_that_it_names(cell: Cell) -> None:
    """What it writes is what stands there, so that no cell spoils another's cache."""
    recorder, workload = Recorder(), Workload(_CELLS, 300)
    workload.fill(recorder)
    written = {tuple(batch[0].block_table[:2]): batch[0].token_ids for batch in recorder.batches}

    batch = workload.batch_of(cell)

    assert cell.batch == len(batch)
    for rows in batch:
        assert (cell.context, cell.num_rows) == (rows.num_computed_tokens, rows.num_rows)
        assert (4 if cell.phase == "verify" else 1) == rows.num_logit_rows
        assert -(-rows.context_len // BLOCK_SIZE) == len(rows.block_table)
        whole = written[tuple(rows.block_table[:2])]
        assert list(rows.token_ids) == list(whole[: rows.context_len])
