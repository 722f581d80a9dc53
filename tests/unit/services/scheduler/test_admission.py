"""What a request becomes: every field has a value, defaults come from the model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from slipstream.services.scheduler.admission import Admission, AdmittedRequest
from slipstream.shared.errors import (
    ContextLengthError,
    InvalidRequestError,
    MessageTooLargeError,
    UnknownModelError,
)
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.fake_model import write_fake_model
from slipstream.shared.model.tokenizer import Tokenizer
from slipstream.shared.scheduling.classes import CLASSES

from .scheduler_samples import make_config

MODEL = ModelConfig(
    name="fake",
    num_layers=1,
    hidden_size=8,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    intermediate_size=16,
    vocab_size=259,
    max_context_length=64,
    rope_theta=1.0,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    temperature=0.7,
    top_p=0.9,
    top_k=40,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("fake")
    return Tokenizer(write_fake_model(directory))


@pytest.fixture
def admission(tokenizer: Tokenizer) -> Admission:
    return Admission(make_config(max_request_bytes=1000), "fake", MODEL, tokenizer)


def admit(admission: Admission, subject_model: str | None = None, **fields: Any) -> AdmittedRequest:
    return admission.admit(json.dumps({"prompt": "Hello", **fields}).encode(), subject_model)


def test_defaults_are_those_of_the_model(admission: Admission) -> None:
    request = admit(admission)
    sampling = request.sampling

    assert (0.7, 0.9, 40) == (sampling.temperature, sampling.top_p, sampling.top_k)
    assert (59, 0) == (sampling.max_tokens, sampling.min_tokens), "what fits behind five tokens"
    assert ("auto", 300_000, False, 0) == (
        request.route,
        request.deadline_ms,
        request.is_streamed,
        request.priority,
    )
    assert 5 == len(request.prompt_token_ids)


def test_what_is_said_counts(admission: Admission) -> None:
    request = admit(
        admission,
        temperature=0,
        top_k=-1,
        max_tokens=3,
        min_tokens=2,
        stop="x",
        seed=-5,
        logprobs=True,
        route="local",
        stream=True,
        deadline_ms=5,
        logit_bias={"007": 1},
    )
    sampling = request.sampling

    assert (0.0, 0, 3, 2) == (
        sampling.temperature,
        sampling.top_k,
        sampling.max_tokens,
        sampling.min_tokens,
    )
    assert (("x",), -5, 0, {7: 1}) == (
        sampling.stop,
        sampling.seed,
        sampling.num_logprobs,
        sampling.logit_bias,
    )
    assert ("local", True, 5) == (request.route, request.is_streamed, request.deadline_ms)


@pytest.mark.parametrize(
    ("fields", "num_logprobs"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True, "top_logprobs": 3}, 3),
        ({"logprobs": 5}, 5),
        ({"logprobs": 0}, 0),
    ],
)
def test_logprobs_come_in_three_spellings(
    admission: Admission, fields: dict[str, Any], num_logprobs: int | None
) -> None:
    assert num_logprobs == admit(admission, **fields).sampling.num_logprobs


@pytest.mark.parametrize(
    ("fields", "num_tokens"),
    [({"speculation": "off"}, 0), ({"num_speculative_tokens": 2}, 2), ({}, None)],
)
def test_speculation_can_be_switched_off(
    admission: Admission, fields: dict[str, Any], num_tokens: int | None
) -> None:
    assert num_tokens == admit(admission, **fields).sampling.num_speculative_tokens


@pytest.mark.parametrize("mode", ["exact", "rejection"])
def test_the_way_of_verifying_drafts_is_passed_on(admission: Admission, mode: str) -> None:
    assert mode == admit(admission, speculation_mode=mode).sampling.speculation_mode
    assert "exact" == admit(admission).sampling.speculation_mode


def test_every_request_without_a_seed_gets_its_own(admission: Admission) -> None:
    assert admit(admission).sampling.seed != admit(admission).sampling.seed


@pytest.mark.parametrize("subject_model", [None, "fake"])
def test_the_model_may_be_named_anywhere(admission: Admission, subject_model: str | None) -> None:
    assert admit(admission, subject_model, model="fake")


@pytest.mark.parametrize(
    ("model", "subject_model"), [("gpt", None), (None, "gpt"), ("gpt", "fake")]
)
def test_another_model_is_refused_by_name(
    admission: Admission, model: str | None, subject_model: str | None
) -> None:
    with pytest.raises(UnknownModelError, match="'gpt' is not served here; 'fake' is"):
        admit(admission, subject_model, model=model)


def test_a_prompt_must_leave_room_for_a_token(admission: Admission) -> None:
    assert 1 == admit(admission, prompt="x" * 63, max_tokens=9).sampling.max_tokens
    with pytest.raises(ContextLengthError, match=r"64 tokens leave no room .* 64 tokens") as caught:
        admit(admission, prompt="x" * 64)

    assert 63 == caught.value.limit


def test_a_body_too_large_is_refused_by_both_sizes(admission: Admission) -> None:
    with pytest.raises(MessageTooLargeError, match=r"a request of 1021 bytes .* 1000 bytes"):
        admit(admission, prompt="x" * 1007)


def test_token_ids_and_messages_are_prompts_too(admission: Admission) -> None:
    assert [1, 2] == list(admit(admission, prompt=None, prompt_token_ids=[1, 2]).prompt_token_ids)
    chat = admit(admission, prompt=None, messages=[{"role": "user", "content": "a"}])
    assert 256 == chat.prompt_token_ids[0], "the template's own token"
    with pytest.raises(InvalidRequestError, match=r"prompt_token_ids: token id 259 .*0 to 258"):
        admit(admission, prompt=None, prompt_token_ids=[259])


@pytest.mark.parametrize("deadline_ms", [0, -1, 3_600_001])
def test_deadlines_have_limits(admission: Admission, deadline_ms: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"deadline_ms: .*\[1, 3600000\]"):
        admit(admission, deadline_ms=deadline_ms)


@pytest.mark.parametrize(
    ("latency_class", "deadline_ms"),
    [(None, 300_000), ("interactive", 300_000), ("standard", 300_000), ("batch", 3_600_000)],
)
def test_without_a_deadline_of_its_own_a_request_has_its_class_s(
    admission: Admission, latency_class: str | None, deadline_ms: int
) -> None:
    request = admit(admission, latency_class=latency_class)

    assert deadline_ms == request.deadline_ms
    assert not request.is_patient


def test_batch_work_may_wait_for_what_its_class_promises(admission: Admission) -> None:
    promised_ms = 1000 * CLASSES["batch"].ttft_target_s

    assert promised_ms <= admit(admission, latency_class="batch").deadline_ms


@pytest.mark.parametrize(
    ("fields", "latency_class", "deadline_ms"),
    [
        ({}, "batch", 3_600_000),
        ({"latency_class": "interactive"}, "interactive", 3_600_000),
        ({"deadline_ms": 5000}, "batch", 5000),
    ],
)
def test_a_submission_has_all_the_time_there_is_and_no_class_hurries_it(
    admission: Admission, fields: dict[str, Any], latency_class: str, deadline_ms: int
) -> None:
    payload = json.dumps({"prompt": "Hello", **fields}).encode()
    request = admission.admit(payload, None, is_submitted=True)

    assert (latency_class, deadline_ms) == (request.latency_class, request.deadline_ms)
    assert request.is_patient


def test_a_submission_s_deadline_has_limits_too(admission: Admission) -> None:
    with pytest.raises(InvalidRequestError, match=r"deadline_ms: 0 is out of range"):
        admission.admit(b'{"prompt": "x", "deadline_ms": 0}', None, is_submitted=True)


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b'"x"', b"\x80", b"\xff", b'{"prompt": 1}'])
def test_what_is_no_request_is_refused(admission: Admission, payload: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        admission.admit(payload, None)


@pytest.mark.parametrize("encode", [msgspec.json.encode, msgspec.msgpack.encode])
def test_unknown_fields_are_warned_about_once_a_name(
    admission: Admission, encode: Callable[[object], bytes]
) -> None:
    payload = encode({"prompt": "Hello", "temprature": 1, "foo": {"bar": [1]}})
    with capture_logs() as lines:
        for _ in range(2):
            admission.admit(payload, None)

    assert ["temprature", "foo"] == [line["field"] for line in lines]


def test_no_two_tenants_share_a_salt_whatever_they_send(admission: Admission) -> None:
    """Not even one who names as a salt what another's tenant and salt are made to."""
    pairs: list[dict[str, str]] = [
        {},
        {"tenant": "a"},
        {"tenant": "ab"},
        {"tenant": "a", "cache_salt": "b"},
        {"cache_salt": "1:a"},
        {"cache_salt": "1:ab"},
        {"cache_salt": "a"},
        {"tenant": "1:a"},
    ]
    salts = [admit(admission, prompt="x", **pair).cache_salt for pair in pairs]

    assert len(set(salts)) == len(pairs)
    assert "" == salts[0]


def test_tenants_share_prefixes_where_they_are_told_to(tokenizer: Tokenizer) -> None:
    sharing = Admission(make_config(is_isolating_tenants=False), "fake", MODEL, tokenizer)
    found = {admit(sharing, prompt="x", tenant=name).cache_salt for name in ("a", "b")}

    assert {""} == found
