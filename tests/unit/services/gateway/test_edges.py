"""Keys, errors, and what the description of the API says of itself."""

from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from slipstream.services.gateway import keys as keys_module
from slipstream.services.gateway.bodies import CompletionBody
from slipstream.services.gateway.errors import ApiError, api_error_of, invalid
from slipstream.services.gateway.exchange import Exchange
from slipstream.services.gateway.fields import BodyReader
from slipstream.services.gateway.keys import read_keys
from slipstream.services.gateway.openapi import openapi_document
from slipstream.shared.client.request_stream import RequestFailedError
from slipstream.shared.errors import (
    ConfigurationError,
    ContextLengthError,
    DeadlineExceededError,
    MessageTooLargeError,
    NoAnswerError,
    NoRespondersError,
    SlipstreamError,
)
from slipstream.shared.messages.common import Failed


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ContextLengthError("prompt", "too long"), 400, "invalid_request_error"),
        (MessageTooLargeError(2, 1), 413, "invalid_request_error"),
        (NoRespondersError("x"), 503, "server_error"),
        (NoAnswerError("word", 1), 504, "server_error"),
        (DeadlineExceededError("end", 1), 504, "server_error"),
        (SlipstreamError("?"), 500, "server_error"),
        *(
            (RequestFailedError(Failed(code=code, message="m")), status, kind)
            for code, status, kind in (
                ("invalid_request", 400, "invalid_request_error"),
                ("model_not_found", 404, "invalid_request_error"),
                ("overloaded", 429, "rate_limit_error"),
                ("deadline_exceeded", 504, "server_error"),
                ("no_workers", 503, "server_error"),
                ("draining", 503, "server_error"),
                ("worker_lost", 503, "server_error"),
                ("worker_no_seat", 503, "server_error"),
                ("kv_lost", 503, "server_error"),
                ("kv_too_large", 400, "invalid_request_error"),
                ("cancelled", 499, "invalid_request_error"),
                ("non_finite_logits", 500, "server_error"),
            )
        ),
    ],
)
def test_every_error_has_its_status(error: SlipstreamError, status: int, kind: str) -> None:
    found = api_error_of(error)

    assert status == found.status
    assert kind == msgspec.json.decode(found.body)["error"]["type"]


def test_a_refusal_says_when_to_come_again() -> None:
    failed = Failed(code="overloaded", message="full", retry_after_ms=1500)

    found = api_error_of(RequestFailedError(failed))

    assert {"retry-after": "2", "retry-after-ms": "1500"} == found.headers
    assert "full" == msgspec.json.decode(found.body)["error"]["message"]
    assert {} == ApiError("invalid_request", "m").headers


def test_without_keys_everybody_may_ask() -> None:
    assert read_keys(None, "").tenant_of(None) is None


@pytest.mark.parametrize(
    ("authorization", "tenant"),
    [("Bearer one", "acme"), ("bearer  two ", ""), ("Bearer three", "file")],
)
def test_a_key_names_its_tenant(tmp_path: Path, authorization: str, tenant: str) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n\nthree file  # of a file\n")

    assert tenant == read_keys(file, "one acme,two").tenant_of(authorization)


@pytest.mark.parametrize("authorization", [None, "", "one", "Basic one", "Bearer", "Bearer oneX"])
def test_a_wrong_key_is_refused(authorization: str | None) -> None:
    with pytest.raises(ApiError) as raised:
        read_keys(None, "one acme").tenant_of(authorization)

    assert (401, "invalid_api_key") == (raised.value.status, raised.value.code)
    assert "one" not in raised.value.message.split()


@pytest.mark.parametrize("content", ["", "# none\n", "a b c\n", "a b\na c\n"])
def test_a_file_that_is_wrong_opens_no_door(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)

    with pytest.raises(ConfigurationError):
        read_keys(file, "")
    with pytest.raises(ConfigurationError, match="can't be read"):
        read_keys(tmp_path / "missing", "")


@pytest.mark.parametrize(
    ("given", "found"),
    [("mine-1", "mine-1"), ("a\r\nb c", "abc"), ("x" * 500, "x" * 128), ("é", "")],
)
def test_a_client_s_name_for_its_request_is_safe(given: str, found: str) -> None:
    headers = [(b"X-Request-Id", given.encode("latin-1"))]
    exchange = Exchange({"headers": headers}, None, None, 1.0)

    assert found == exchange.request_id or (not found and exchange.request_id.startswith("req_"))


def test_every_reference_of_the_description_leads_somewhere() -> None:
    document = openapi_document().decode()
    schemas = msgspec.json.decode(document)["components"]["schemas"]

    used = {part.partition('"')[0] for part in document.split('"#/components/schemas/')[1:]}
    assert used <= set(schemas)
    assert {"ChatBody", "ChatCompletion", "ErrorBody"} <= used


def test_a_key_of_any_letters_is_known_by_its_bytes() -> None:
    """Headers are read as latin-1, files as UTF-8."""
    keys = read_keys(None, "schlüssel theirs")

    assert "theirs" == keys.tenant_of("Bearer " + "schlüssel".encode().decode("latin-1"))
    with pytest.raises(ApiError):
        keys.tenant_of("Bearer schlussel")


def test_an_error_of_no_field_names_none() -> None:
    assert (None, "seed") == (invalid("", "no JSON").param, invalid("seed", "is bad").param)


def test_a_key_file_that_others_may_write_is_refused_and_one_they_may_read_is_warned_of(
    tmp_path: Path,
) -> None:
    file = tmp_path / "keys"
    file.write_text("secret-1 acme\n")
    file.chmod(0o620)
    with pytest.raises(ConfigurationError, match=r"written by others.*chmod 600"):
        read_keys(file, "")

    file.chmod(0o640)
    with capture_logs() as open_logs:
        read_keys(file, "")
    file.chmod(0o600)
    with capture_logs() as private_logs:
        read_keys(file, "")

    assert ["api_keys_readable_by_others"] == [each["event"] for each in open_logs]
    assert [] == private_logs
    assert "secret-1" not in str(open_logs)


def test_keys_are_compared_by_digests_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key is compared, and none of the comparisons can end early by a length."""
    seen: list[tuple[int, int]] = []
    original = keys_module.hmac.compare_digest

    def spy(one: bytes, other: bytes) -> bool:
        seen.append((len(one), len(other)))
        return original(one, other)

    monkeypatch.setattr(keys_module.hmac, "compare_digest", spy)
    keys = read_keys(None, "short a,a-much-longer-key b,third c")

    assert ["a", "b"] == [keys.tenant_of(f"Bearer {k}") for k in ("short", "a-much-longer-key")]
    assert [(32, 32)] * 6 == seen


def test_a_key_that_is_no_text_is_compared_as_the_bytes_it_is() -> None:
    """So variables of the environment come into Python, and headers into the gateway."""
    keys = read_keys(None, "k\udcff tenant")

    assert "tenant" == keys.tenant_of(b"Bearer k\xff".decode("latin-1"))


@pytest.mark.parametrize("field", ["seed", "guided_json"])
def test_a_whole_number_that_no_message_can_pass_on_names_the_field(field: str) -> None:
    value = "1" + "0" * 30 if field == "seed" else '{"maximum": 1' + "0" * 30 + "}"
    body = f'{{"prompt": "x", "{field}": {value}}}'.encode()
    with pytest.raises(ApiError, match="more than 64 bits") as refused:
        BodyReader().read(body, CompletionBody)

    assert field == refused.value.param
