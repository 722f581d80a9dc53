"""The default texts: whole, of two kinds, and unknown to calibration."""

from pathlib import Path

import pytest

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure import texts
from slipstream.shared.measure.texts import CODE_MODULES, TOPICS, default_texts, read_text
from slipstream.shared.model.calibration import calibration_texts

_NUM_WORDS = 13  # as long a run in common is no chance


def runs_of_words(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[i : i + _NUM_WORDS]) for i in range(len(words) - _NUM_WORDS + 1)}


def test_no_text_is_one_that_the_weights_were_rounded_by() -> None:
    """Else the figures would be those of a fit, not of a forecast."""
    known = set[tuple[str, ...]]().union(*map(runs_of_words, calibration_texts()))
    assert len(known) > 1000

    shared = {text.name: runs_of_words(text.content) & known for text in default_texts()}

    assert {"prose": set(), "code": set()} == shared


def test_no_part_stands_in_it_twice() -> None:
    """A model copies what it has seen: repeated paragraphs would flatter every format."""
    assert len(set(TOPICS)) == len(TOPICS)
    assert len(set(CODE_MODULES)) == len(CODE_MODULES)
    (prose, _) = default_texts()

    assert len(runs_of_words(prose.content)) > 0.97 * len(prose.content.split())


@pytest.mark.parametrize(
    ("constant", "names", "words"),
    [
        ("CODE_MODULES", ("bisect", "no_such_module"), "source of no_such_module"),
        ("CODE_MODULES", ("itertools",), "source of itertools"),
        ("TOPICS", ("no-such-topic",), "topic no-such-topic"),
        ("TOPICS_MODULE", "no_such_module", "topic objects of no_such_module"),
    ],
)
def test_a_part_that_is_missing_is_missed(
    constant: str, names: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less text would be other figures under the same name."""
    monkeypatch.setattr(texts, constant, names)

    with pytest.raises(ConfigurationError, match=f"lacks the {words}.*--text FILE"):
        default_texts()


def test_a_file_keeps_its_name_and_its_characters(tmp_path: Path) -> None:
    path = tmp_path / "novel.txt"
    path.write_text("größer\n", encoding="utf-8")

    assert texts.Text(str(path), "größer\n") == read_text(path)
