"""A mapped vocabulary says what the tokenizer says, and takes none of its memory."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

from slipstream.shared.errors import ModelError
from slipstream.shared.model.detokenizer import IncrementalDetokenizer, Vocabulary
from slipstream.shared.model.tokenizer import Tokenizer
from slipstream.shared.model.vocabulary import MappedVocabulary, make_vocabulary, open_vocabulary


def assert_same(vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    """Compare every token, ids that there are none of, and random streams of both."""
    assert isinstance(vocabulary, MappedVocabulary)
    token_ids = range(-2, tokenizer.max_token_id + 3)
    for token_id in [*token_ids, 2**32, -(2**40)]:
        for skip in (False, True):
            wanted = tokenizer.is_visible(token_id, skip_special=skip)
            assert wanted == vocabulary.is_visible(token_id, skip_special=skip), token_id
        if wanted:
            assert tokenizer.bytes_of(token_id) == vocabulary.bytes_of(token_id), token_id
    generator = random.Random(1)
    for _ in range(50):
        prompt, output = ([generator.choice(token_ids) for _ in range(9)] for _ in range(2))
        texts = [
            [*map(stream.push, output), stream.flush()]
            for stream in (
                IncrementalDetokenizer(each, prompt, skip_special_tokens=True)
                for each in (tokenizer, vocabulary)
            )
        ]
        assert texts[0] == texts[1]


def test_every_token_says_what_the_tokenizer_says(
    fake_dir: Path, fake_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    assert_same(open_vocabulary(fake_dir, tmp_path), fake_tokenizer)


@pytest.mark.model
def test_every_token_of_a_real_model_does(model_dir: Path, tmp_path: Path) -> None:
    assert_same(open_vocabulary(model_dir, tmp_path), Tokenizer(model_dir))


def test_the_file_is_made_once(fake_dir: Path, tmp_path: Path) -> None:
    open_vocabulary(fake_dir, tmp_path)
    (path,) = tmp_path.glob("vocabularies/*/tokens.bin")
    made_ns = path.stat().st_mtime_ns

    make_vocabulary(fake_dir, tmp_path, report=lambda _line: None)
    open_vocabulary(fake_dir, tmp_path)

    assert [path] == list(tmp_path.glob("vocabularies/*/tokens.bin"))
    assert made_ns == path.stat().st_mtime_ns


@pytest.mark.parametrize("is_made", [True, False])
def test_opening_it_loads_no_tokenizer(fake_dir: Path, tmp_path: Path, *, is_made: bool) -> None:
    if is_made:
        make_vocabulary(fake_dir, tmp_path, report=lambda _line: None)
    script = (
        "import sys; from pathlib import Path;"
        "from slipstream.shared.model.vocabulary import open_vocabulary;"
        "open_vocabulary(*map(Path, sys.argv[1:]));"
        "sys.exit('tokenizers' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-P", "-c", script, fake_dir, tmp_path], check=False)

    assert 0 == done.returncode


def test_another_kind_of_vocabulary_takes_the_tokenizer(tmp_path: Path) -> None:
    Library(BPE(vocab={"a": 0, "b": 1}, merges=[])).save(str(tmp_path / "tokenizer.json"))

    vocabulary = open_vocabulary(tmp_path, tmp_path / "cache")

    assert isinstance(vocabulary, Tokenizer)


def test_a_cache_that_takes_no_file_takes_the_tokenizer(fake_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert isinstance(open_vocabulary(fake_dir, tmp_path / "file"), Tokenizer)


def test_a_damaged_tokenizer_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json can't be read"):
        open_vocabulary(tmp_path, tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")

    with pytest.raises(ModelError, match=r"tokenizer\.json is damaged"):
        open_vocabulary(tmp_path, tmp_path)
