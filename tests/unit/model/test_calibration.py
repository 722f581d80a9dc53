"""Calibration counts rows by what hangs on them."""

from pathlib import Path

import numpy as np
import torch

from slipstream.shared.model.calibration import Calibration, _conversations, calibration_texts
from slipstream.shared.model.calibration_chats import CHATS
from slipstream.shared.model.tokenizer import Tokenizer


def test_texts_are_many_and_none_is_empty() -> None:
    texts = calibration_texts()

    assert len(texts) >= 20
    assert all(len(text) > 500 for text in texts)
    assert len(set(texts)) == len(texts)


def test_an_important_row_counts_as_often_as_it_is_important() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    found = Calibration()

    found.add("x", rows, torch.tensor([1.0, 5.0]))
    found.add("x", rows, torch.tensor([1.0, 1.0]))

    np.testing.assert_allclose(found.moments["x"], [[2.0, 0.0], [0.0, 6.0]], rtol=1e-6)


def test_no_row_drowns_the_others() -> None:
    rows = torch.eye(4)
    rows[2] *= 1000
    found = Calibration()

    found.add("x", rows, torch.ones(4))

    np.testing.assert_allclose(np.diag(found.moments["x"]), [1.0, 1.0, 9.0, 1.0], rtol=1e-6)


def test_rows_of_zeros_do_no_harm() -> None:
    found = Calibration()

    found.add("x", torch.zeros(3, 2), torch.ones(3))

    assert not found.moments["x"].any()


def test_conversations_are_in_the_template_of_the_model(model_dir: Path) -> None:
    """Chat models begin with tokens that no plain text has: they must be among what is seen."""
    tokenizer = Tokenizer(model_dir)

    found = list(_conversations(tokenizer))

    assert len(CHATS) == len(found)
    for (question, answer), token_ids in zip(CHATS, found, strict=True):
        assert tokenizer.is_special(token_ids[0])
        text = tokenizer.decode(token_ids)
        assert text.index(question) < text.index(answer)
