"""How text is cut and fed: what follows which row, in which chunks, with which beginning."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import tokenizers
from tokenizers.processors import TemplateProcessing

from slipstream.shared.errors import ConfigurationError, ModelError, NonFiniteLogitsError
from slipstream.shared.measure import teacher_forcing
from slipstream.shared.measure.teacher_forcing import Evaluation, score_windows
from slipstream.shared.measure.texts import Text
from slipstream.shared.model.config import ModelConfig, load_config
from slipstream.shared.model.fake_model import write_fake_model
from slipstream.shared.model.formats import Formats
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.model.tokenizer import Tokenizer

_VOCAB_SIZE = 20
_SEQUENCES = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]]
_INT8 = Formats("int8", "int8")
_BOS = 256


class StandIn:
    """Holds token + `step` for likely after each token, and keeps what it was asked."""

    vocab_size = _VOCAB_SIZE
    num_forwards = 0
    numerics = "stand-in"

    def __init__(self, strength: float, step: int = 1) -> None:
        self.strength = strength
        self.step = step
        self.asked: list[SequenceRows] = []

    def forward(self, batch: Sequence[SequenceRows]) -> npt.NDArray[np.float32]:
        (rows,) = batch
        self.asked.append(rows)
        logits = np.zeros((rows.num_logit_rows, _VOCAB_SIZE), np.float32)
        last = np.array(rows.token_ids[-rows.num_logit_rows :])
        logits[np.arange(len(last)), last + self.step] = self.strength
        return logits

    def close(self) -> None: ...


def evaluation(model_dir: Path, config: ModelConfig, num_tokens: int, window: int) -> Evaluation:
    return Evaluation(
        model_dir=model_dir,
        config=config,
        cache_dir=model_dir,
        kernels=None,  # type: ignore[arg-type] # cutting text computes nothing
        num_tokens=num_tokens,
        window=window,
        num_threads=1,
        report=print,
    )


@pytest.fixture(scope="module")
def fake_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokens are bytes."""
    return write_fake_model(tmp_path_factory.mktemp("fake"))


def test_a_row_is_scored_by_the_token_after_it() -> None:
    """Counting up is foretold by one who adds one, and by nobody who adds two."""
    sequences = [list(range(5, 13)), list(range(2, 10))]
    runners = {_INT8: StandIn(50.0), Formats("float32", "int8"): StandIn(50.0, step=2)}

    scored = score_windows(StandIn(0.0), runners, sequences, lambda: None)

    right, wrong = scored.values()
    assert (2, 7) == right.nll.shape
    np.testing.assert_allclose(right.nll, 0.0, atol=1e-12)
    np.testing.assert_allclose(wrong.nll, 50.0, rtol=1e-12)
    np.testing.assert_allclose(right.reference_nll, np.log(_VOCAB_SIZE))


@pytest.mark.parametrize(
    ("num_rows", "num_computed"), [(512, [0]), (7, [0]), (3, [0, 3, 6]), (4, [0, 4])]
)
def test_a_window_is_computed_in_chunks_over_one_past(
    num_rows: int, num_computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = score_windows(StandIn(1.0), {_INT8: StandIn(2.0)}, _SEQUENCES, lambda: None)
    monkeypatch.setattr(teacher_forcing, "_NUM_ROWS", num_rows)
    reference, runner = StandIn(1.0), StandIn(2.0)

    found = score_windows(reference, {_INT8: runner}, _SEQUENCES, lambda: None)

    assert num_computed * 2 == [rows.num_computed_tokens for rows in runner.asked]
    assert [rows.token_ids for rows in reference.asked] == [rows.token_ids for rows in runner.asked]
    assert _SEQUENCES[1][:7] == runner.asked[-1].token_ids
    assert all(rows.num_logit_rows == rows.num_rows for rows in runner.asked)
    np.testing.assert_array_equal(expected[_INT8].kl, found[_INT8].kl)


def test_windows_are_counted_as_they_are_done() -> None:
    reference = StandIn(0.0)
    counted: list[int] = []

    score_windows(reference, {}, _SEQUENCES, lambda: counted.append(len(reference.asked)))

    assert [1, 2] == counted


@pytest.mark.parametrize("strength", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_no_figure(strength: float) -> None:
    with pytest.raises(NonFiniteLogitsError, match="weights in int8 with KV in int8"):
        score_windows(StandIn(0.0), {_INT8: StandIn(strength)}, _SEQUENCES, lambda: None)


def test_text_is_cut_from_its_beginning_into_whole_windows(fake_dir: Path) -> None:
    text = Text("prose", "".join(map(chr, range(32, 127))))

    (cut,) = evaluation(fake_dir, load_config(fake_dir), 50, 30).cut([text])

    token_ids = Tokenizer(fake_dir).encode(text.content)
    assert [token_ids[:30], token_ids[30:60]] == cut.sequences
    assert "prose" == cut.name


def test_every_window_begins_with_the_bos_that_prompts_get(fake_dir: Path, tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(fake_dir / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", _BOS)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = msgspec.structs.replace(load_config(fake_dir), bos_token_id=_BOS)

    (cut,) = evaluation(tmp_path, config, 16, 8).cut([Text("t", "abcdefghijklmnopqrs")])

    token_ids = Tokenizer(fake_dir).encode("abcdefghijklmn")
    assert [[_BOS, *token_ids[:7]], [_BOS, *token_ids[7:]]] == cut.sequences


def test_a_text_that_is_too_short_is_refused(fake_dir: Path) -> None:
    """Filling it up with less would pool texts of unequal weight."""
    asked = evaluation(fake_dir, load_config(fake_dir), 100, 64)

    with pytest.raises(ConfigurationError, match=r"--text t has 127 tokens.*takes 128; lower"):
        asked.cut([Text("t", "x" * 127)])


def test_a_tokenizer_of_another_model_is_refused(fake_dir: Path) -> None:
    """The engine would read outside the embedding."""
    config = msgspec.structs.replace(load_config(fake_dir), vocab_size=60)

    with pytest.raises(ModelError, match="outside the vocabulary of 60"):
        evaluation(fake_dir, config, 130, 130).cut([Text("t", "xyz" * 100)])


@pytest.mark.parametrize(
    ("num_tokens", "window", "words"),
    [
        (100, 1, r"--window is 1; it must lie in \[2, 8192\]"),
        (100, 8193, r"--window is 8193; it must lie in \[2, 8192\], the context of"),
        (64, 64, "--tokens is 64: one window of 64.*take more than 64"),
    ],
)
def test_what_gives_no_figures_is_refused(
    num_tokens: int, window: int, words: str, fake_dir: Path
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        evaluation(fake_dir, load_config(fake_dir), num_tokens, window)
