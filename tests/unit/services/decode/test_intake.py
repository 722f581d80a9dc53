"""A sequence that others began is brought where they stopped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.services.decode.intake import restore, take_first_token
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.services.decode.stopping import Ending
from slipstream.shared.errors import ConstraintError
from slipstream.shared.ids import HostId, LeaseId, WorkerId
from slipstream.shared.messages.jobs import DecodeJob, HandOver
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import Constraint
from slipstream.shared.model.config import load_config
from slipstream.shared.model.fake_model import write_fake_model
from slipstream.shared.model.tokenizer import Tokenizer
from slipstream.shared.worker.sampler_source import SamplerSource

from .decode_samples import make_job, make_sequence

_WORD = Constraint("regex", "[a-c]{3}")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_model(tmp_path_factory.mktemp("fake"))


@pytest.fixture(scope="module")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer(model_dir)


@pytest.fixture(scope="module")
def samplers(model_dir: Path, tokenizer: Tokenizer) -> SamplerSource:
    return SamplerSource(load_config(model_dir), lambda: tokenizer)


def _new(tokenizer: Tokenizer, output: str, first: str | None = None) -> DecodeSequence:
    """Return a sequence as a job describes it, before anything is done with it."""
    fields: dict[str, Any] = {"constraint": _WORD, "min_tokens": 5, "max_tokens": 9}
    job = make_job([1, 2], output=tokenizer.encode(output) if output else [], **fields)
    if first is not None:
        (token_id,) = tokenizer.encode(first)
        job = _handed_over(job, token_id)
    sequence = make_sequence([1, 2], job)
    sequence.sampler = None
    return sequence


def _handed_over(job: DecodeJob, first_token_id: int) -> DecodeJob:
    fields = {name: getattr(job, name) for name in DecodeJob.__struct_fields__}
    fields["hand_over"] = HandOver(
        lease_id=LeaseId("lease"),
        host_id=HostId("host"),
        prefill_worker_id=WorkerId("prefill"),
        block_ids=PackedInts([1]),
        generations=PackedInts([1]),
        num_computed_tokens=2,
        first_token_id=first_token_id,
    )
    return DecodeJob(**fields)


async def test_the_constraint_goes_on_behind_what_was_said(
    tokenizer: Tokenizer, samplers: SamplerSource
) -> None:
    sequence = _new(tokenizer, "ab")
    await restore(samplers, sequence)
    assert sequence.sampler is not None
    assert sequence.ending is None
    token = sequence.sampler.sample(np.zeros(259, np.float32))
    sequence.emit(token)

    assert b"a" == tokenizer.bytes_of(token.token_id)
    assert Ending("stop") == sequence.ending
    assert (0, 3) == (sequence.log.num_sent, len(sequence.log.token_ids))


async def test_what_was_said_wholly_needs_only_its_ending(
    tokenizer: Tokenizer, samplers: SamplerSource
) -> None:
    """The worker that said it was gone before the ending."""
    sequence = _new(tokenizer, "abc")
    await restore(samplers, sequence)

    assert Ending("stop") == sequence.ending
    assert [1, 2, *tokenizer.encode("abc")] == sequence.token_ids


@pytest.mark.parametrize(("output", "ending"), [("", None), ("ab", Ending("stop"))])
async def test_the_first_token_of_a_hand_over_counts(
    tokenizer: Tokenizer, samplers: SamplerSource, output: str, ending: Ending | None
) -> None:
    sequence = _new(tokenizer, output, first="c")
    await restore(samplers, sequence)
    take_first_token(sequence)

    assert ending == sequence.ending
    assert tokenizer.encode(f"{output}c") == sequence.log.token_ids
    assert sequence.sampler is not None
    assert len(output) + 1 == sequence.sampler.num_output_tokens


async def test_a_first_token_behind_the_end_is_left_out(
    tokenizer: Tokenizer, samplers: SamplerSource
) -> None:
    sequence = _new(tokenizer, "abc", first="c")
    await restore(samplers, sequence)
    take_first_token(sequence)

    assert tokenizer.encode("abc") == sequence.log.token_ids


async def test_what_does_not_match_the_constraint_is_an_error(
    tokenizer: Tokenizer, samplers: SamplerSource
) -> None:
    with pytest.raises(ConstraintError):
        await restore(samplers, _new(tokenizer, "ax"))
