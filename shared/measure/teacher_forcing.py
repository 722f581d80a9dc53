"""Run given text through the native engine in several formats, and score every position."""

import contextlib
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slipstream.kernels.cpu.loader import NativeLibrary
from slipstream.shared.errors import ConfigurationError, ModelError, NonFiniteLogitsError
from slipstream.shared.kv.layout import BLOCK_SIZE, KvLayout
from slipstream.shared.measure.accuracy import BLOCK_LENGTH, Logits, Scores, compare
from slipstream.shared.measure.texts import Text
from slipstream.shared.model.config import ModelConfig, model_fingerprint
from slipstream.shared.model.formats import Formats
from slipstream.shared.model.native_runner import NativeRunner
from slipstream.shared.model.packed_weights import open_packed
from slipstream.shared.model.runner import ModelRunner, SequenceRows
from slipstream.shared.model.tokenizer import Tokenizer

# Rows of a step, whose logits are held twice: 50,000 tokens of vocabulary make 100 MB of them.
# Longer windows are computed in chunks, which gives the same bits.
_NUM_ROWS = 512
_MIN_WINDOW = 2  # a token and one that follows it


REFERENCE = Formats("float32", "float32")
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Windows:
    """A text cut into sequences of one length, each computed by itself."""

    name: str
    sequences: list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One model, cut and computed as asked for."""

    model_dir: Path
    config: ModelConfig
    cache_dir: Path
    kernels: NativeLibrary
    num_tokens: int  # of each text, rounded up to whole windows
    window: int
    num_threads: int
    report: Report

    def __post_init__(self) -> None:
        limit = self.config.max_context_length
        if not _MIN_WINDOW <= self.window <= limit:
            raise ConfigurationError(
                f"--window is {self.window}; it must lie in [{_MIN_WINDOW}, {limit}], the context "
                f"of {self.config.name}"
            )
        if self.num_tokens <= self.window <= BLOCK_LENGTH + 1:
            raise ConfigurationError(
                f"--tokens is {self.num_tokens}: one window of {self.window}, too little for an "
                f"interval; take more than {self.window}, or a --window above {BLOCK_LENGTH + 1}"
            )

    @property
    def num_windows(self) -> int:
        """Number of windows of a text."""
        return -(-self.num_tokens // self.window)

    def cut(self, texts: Sequence[Text]) -> list[Windows]:
        """Cut the beginning of each text. Raises ConfigurationError for one that is too short."""
        tokenizer = Tokenizer(self.model_dir)
        return [Windows(text.name, self._sequences(text, tokenizer)) for text in texts]

    def score(
        self, texts: Sequence[Windows], formats: Sequence[Formats], on_window: Callable[[], None]
    ) -> dict[Formats, list[Scores]]:
        """Return the scores of each text in each format against the reference."""
        with contextlib.ExitStack() as stack:
            reference, *runners = [
                stack.enter_context(contextlib.closing(self._open(each)))
                for each in (REFERENCE, *formats)
            ]
            opened = dict(zip(formats, runners, strict=True))
            scored = [score_windows(reference, opened, text.sequences, on_window) for text in texts]
        return {each: [of_text[each] for of_text in scored] for each in formats}

    def _sequences(self, text: Text, tokenizer: Tokenizer) -> list[list[int]]:
        # Where the model's rule adds a BOS to a prompt, every window begins with one.
        head = [each for each in tokenizer.encode("") if each == self.config.bos_token_id]
        token_ids = tokenizer.encode(text.content, add_special_tokens=False)
        length = self.window - len(head)
        num_needed = self.num_windows * length
        if len(token_ids) < num_needed:
            raise ConfigurationError(
                f"--text {text.name} has {len(token_ids)} tokens, and --tokens {self.num_tokens} "
                f"in windows of {self.window} takes {num_needed}; lower --tokens or --window, "
                "or give a longer text"
            )
        if max(token_ids) >= self.config.vocab_size:
            raise ModelError(
                f"{self.model_dir / 'tokenizer.json'} has tokens outside the vocabulary of "
                f"{self.config.vocab_size}: it belongs to another model"
            )
        starts = range(0, num_needed, length)
        return [head + token_ids[start : start + length] for start in starts]

    def _open(self, formats: Formats) -> NativeRunner:
        """Return a runner over a private arena that holds one window."""
        config = self.config
        packed = open_packed(
            self.model_dir,
            config,
            model_fingerprint(self.model_dir),
            formats.weights,
            self.cache_dir,
            report=self.report,
        )
        layout = KvLayout(config.num_layers, config.num_kv_heads, config.head_dim, dtype=formats.kv)
        # Block 0 is the null block, as in every arena.
        num_bytes = layout.block_bytes * (1 + layout.num_blocks_for(self.window))
        arena = memoryview(mmap.mmap(-1, num_bytes))
        return NativeRunner(self.kernels, packed, config, arena, layout, self.num_threads)


def score_windows(
    reference: ModelRunner,
    runners: Mapping[Formats, ModelRunner],
    sequences: Sequence[Sequence[int]],
    on_window: Callable[[], None],
) -> dict[Formats, Scores]:
    """Return the scores of each runner: positions after the first token of each sequence."""
    parts: dict[Formats, list[Scores]] = {formats: [] for formats in runners}
    for token_ids in sequences:
        # Nothing follows the last token, so it is a target only.
        for first in range(0, len(token_ids) - 1, _NUM_ROWS):
            end = min(first + _NUM_ROWS, len(token_ids) - 1)
            rows = _rows(token_ids[:end], first)
            targets = token_ids[first + 1 : end + 1]
            expected = _forward(reference, rows, REFERENCE)
            for formats, runner in runners.items():
                found = _forward(runner, rows, formats)
                parts[formats].append(compare(expected, found, targets))
        on_window()
    return {
        formats: Scores.joined(some).in_windows(len(sequences)) for formats, some in parts.items()
    }


def _rows(token_ids: Sequence[int], num_computed: int) -> SequenceRows:
    num_rows = len(token_ids) - num_computed
    num_blocks = -(-len(token_ids) // BLOCK_SIZE)
    return SequenceRows(token_ids, num_computed, num_rows, range(1, num_blocks + 1), num_rows)


def _forward(runner: ModelRunner, rows: SequenceRows, formats: Formats) -> Logits:
    """Return the logits. Raises NonFiniteLogitsError: a NaN would end in every pooled figure."""
    logits = runner.forward([rows])
    num_ill = np.count_nonzero(~np.isfinite(logits).all(axis=1))
    if num_ill:
        raise NonFiniteLogitsError(
            f"weights in {formats.weights} with KV in {formats.kv} give logits that are not finite "
            f"at {num_ill} of {len(logits)} positions"
        )
    return logits
