"""The steps that the engine benchmark times, and the sequences that they work on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.kv.layout import BLOCK_SIZE
from slipstream.shared.model.runner import ModelRunner, SequenceRows

Phase = Literal["prefill", "decode", "verify"]

_NUM_VERIFIED = (4, 8, 16)
_OTHER_CONTEXTS = (128, 4096)
_CHUNK = 512  # rows of a prompt in one step, as workers take them
_NULL_BLOCK = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """A step: `num_rows` new tokens each of `batch` sequences that have `context` in the cache."""

    phase: Phase
    batch: int
    context: int
    num_rows: int

    @property
    def name(self) -> str:
        """For people."""
        match self.phase:
            case "prefill":
                return f"prefill of {self.num_rows} tokens"
            case "decode":
                return f"decode, batch {self.batch}, context {self.context}"
            case "verify":
                return f"verify {self.num_rows} rows, context {self.context}"

    @property
    def num_positions(self) -> int:
        """Positions of the cache that the step reads."""
        return self.batch * self.context

    @property
    def end(self) -> int:
        """Tokens of each sequence after the step."""
        return self.context + self.num_rows


def prefill(num_tokens: int) -> Cell:
    """Return a whole prompt in one step."""
    return Cell("prefill", 1, 0, num_tokens)


def decode(batch: int, context: int) -> Cell:
    """Return one new token for each sequence."""
    return Cell("decode", batch, context, 1)


def standard_cells(
    batches: Sequence[int], context: int, num_prompt_tokens: int, max_context: int
) -> list[Cell]:
    """
    Return the cells of the benchmark, without contexts of ours that the model does not have.

    Raises ConfigurationError for what was asked for and does not fit.
    """
    asked = [prefill(num_prompt_tokens), *(decode(batch, context) for batch in batches)]
    check_cells(asked, max_context)
    ours = [Cell("verify", 1, context, num_rows) for num_rows in _NUM_VERIFIED]
    ours += [decode(1, other) for other in _OTHER_CONTEXTS]
    return list(dict.fromkeys([*asked, *(cell for cell in ours if cell.end <= max_context)]))


def check_cells(cells: Sequence[Cell], max_context: int) -> None:
    """Raise ConfigurationError for sizes that are none, or longer than the model's context."""
    for cell in cells:
        if min(cell.batch, cell.num_rows) < 1 or cell.context < 0:
            raise ConfigurationError(f"{cell.name}: every size is at least 1")
        if cell.end > max_context:
            raise ConfigurationError(f"{cell.name}: the model has {max_context} positions")


class Workload:
    """
    Sequences of random tokens, each with blocks of its own at random places of an arena.

    Sequence i is as long as the longest cell with more than i sequences. Cells use its beginning,
    and what they write is what stands there.
    """

    def __init__(self, cells: Sequence[Cell], vocab_size: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        lengths = [
            max(cell.end for cell in cells if cell.batch > idx)
            for idx in range(max(cell.batch for cell in cells))
        ]
        ends = np.cumsum([_num_blocks_for(length) for length in lengths])
        self.num_blocks = int(ends[-1]) + 1
        scattered = rng.permutation(np.arange(_NULL_BLOCK + 1, self.num_blocks))
        self._tables = [part.tolist() for part in np.split(scattered, ends[:-1])]
        self._token_ids = [rng.integers(0, vocab_size, length).tolist() for length in lengths]

    def fill(self, runner: ModelRunner) -> None:
        """Compute the KV of every sequence."""
        for token_ids, table in zip(self._token_ids, self._tables, strict=True):
            for first in range(0, len(token_ids), _CHUNK):
                chunk = token_ids[: first + _CHUNK]
                runner.forward([_rows(chunk, first, table)])

    def batch_of(self, cell: Cell) -> list[SequenceRows]:
        """Return a cell's batch."""
        num_logits = cell.num_rows if cell.phase == "verify" else 1
        return [
            _rows(token_ids[: cell.end], cell.context, table, num_logits)
            for token_ids, table in zip(
                self._token_ids[: cell.batch], self._tables[: cell.batch], strict=True
            )
        ]


def _rows(
    token_ids: list[int], num_computed: int, table: list[int], num_logits: int = 1
) -> SequenceRows:
    blocks = table[: _num_blocks_for(len(token_ids))]
    return SequenceRows(token_ids, num_computed, len(token_ids) - num_computed, blocks, num_logits)


def _num_blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)
