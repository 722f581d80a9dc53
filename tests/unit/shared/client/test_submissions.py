"""The client of the durable entrance on the in-memory streams."""

import asyncio

import msgspec
import pytest

from slipstream.services.cli.prompt_options import RequestOptions
from slipstream.shared.bus.durable import BODY_DIGEST, MESSAGE_ID, StorageError
from slipstream.shared.bus.memory_durable import MemoryDurable
from slipstream.shared.client import submissions
from slipstream.shared.client.answers import RequestFailedError
from slipstream.shared.client.submissions import fetch, submit
from slipstream.shared.errors import InvalidRequestError, ProtocolError
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import decode_request, encode
from slipstream.shared.messages.common import Accepted, Failed, Timings, Usage
from slipstream.shared.messages.generate import Choice, Completion, GenerateRequest
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.submission import body_digest, result_key

REQUEST = GenerateRequest(prompt="x")
KEYED = GenerateRequest(prompt="x", request_key="k", tenant="t")
ANSWER = Completion(
    request_id=RequestId("r"),
    attempt=1,
    choices=[Choice(text="a", token_ids=PackedInts([1]), finish_reason="stop")],
    usage=Usage(num_prompt_tokens=3, num_output_tokens=1),
    timings=Timings(),
)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "_REST_S", 0.01)
    monkeypatch.setattr(submissions, "_LOOK_S", 0.01)


@pytest.fixture
def durable() -> MemoryDurable:
    return MemoryDurable()


async def put(durable: MemoryDurable, key: str, ending: object, digest: str = "d") -> None:
    await durable.results.create(key, encode(ending, "json"), {BODY_DIGEST: digest})


async def test_a_request_is_stored_and_its_key_returned(durable: MemoryDurable) -> None:
    keys = [await submit(durable, REQUEST), await submit(durable, KEYED)]

    assert ["seq-1", result_key("k", "t")] == keys
    assert [REQUEST, KEYED] == [decode_request(each.payload) for each in durable.queue.waiting]


@pytest.mark.parametrize("key", ["", "x" * 129])
async def test_the_refusal_of_a_key_is_found_by_the_number(
    durable: MemoryDurable, key: str
) -> None:
    """The scheduler refuses it by name; where that is found must be what is printed."""
    assert "seq-1" == await submit(durable, GenerateRequest(prompt="x", request_key=key))


async def test_a_try_that_fails_is_repeated_under_one_id(
    durable: MemoryDurable, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    publish = durable.publish

    async def fail_once(subject: str, payload: bytes, headers: dict[str, str]) -> int:
        seen.append(headers[MESSAGE_ID])
        sequence = await publish(subject, payload, headers)
        if len(seen) == 1:
            raise StorageError("stored, and not heard of")
        return sequence

    monkeypatch.setattr(durable, "publish", fail_once)
    keys = [await submit(durable, REQUEST) for _ in range(2)]

    assert seen[0] == seen[1] != seen[2]
    assert ["seq-1", "seq-2"] == keys
    assert 2 == len(durable.queue.waiting)


async def test_storage_that_stays_away_is_an_error(durable: MemoryDurable) -> None:
    durable.queue.is_broken = True

    with pytest.raises(StorageError):
        await submit(durable, REQUEST)


async def test_a_key_with_another_requests_result_is_refused_at_once(
    durable: MemoryDurable,
) -> None:
    await put(durable, result_key("k", "t"), ANSWER, "another")
    with pytest.raises(RequestFailedError, match="take another key") as caught:
        await submit(durable, KEYED)

    assert "conflict" == caught.value.code
    assert [] == durable.queue.waiting


async def test_a_key_with_its_own_result_is_no_conflict(durable: MemoryDurable) -> None:
    await put(durable, result_key("k", "t"), ANSWER, body_digest(KEYED))

    assert result_key("k", "t") == await submit(durable, KEYED)


async def test_an_answer_is_fetched(durable: MemoryDurable) -> None:
    await put(durable, "seq-1", ANSWER)

    assert ANSWER == await fetch(durable, "seq-1", 0)


async def test_what_is_not_there_is_waited_for(durable: MemoryDurable) -> None:
    fetching = asyncio.create_task(fetch(durable, "seq-1", 5))
    await asyncio.sleep(0.05)
    await put(durable, "seq-1", ANSWER)

    assert ANSWER == await fetching
    assert await fetch(durable, "seq-2", 0) is None
    assert await fetch(durable, "seq-2", 0.05) is None


async def test_a_failure_is_raised(durable: MemoryDurable) -> None:
    await put(durable, "seq-1", Failed(code="kv_too_large", message="too large"))
    with pytest.raises(RequestFailedError, match="too large") as caught:
        await fetch(durable, "seq-1", 0)

    assert "kv_too_large" == caught.value.code


async def test_what_is_no_ending_is_an_error(durable: MemoryDurable) -> None:
    await put(durable, "seq-1", Accepted(request_id=RequestId("r")))

    with pytest.raises(ProtocolError, match="Accepted"):
        await fetch(durable, "seq-1", 0)


@pytest.mark.parametrize("key", ["*", ">", "order-17", "seq-1\n"])
async def test_what_is_no_key_is_refused_by_name(durable: MemoryDurable, key: str) -> None:
    with pytest.raises(InvalidRequestError, match="KEY: "):
        await fetch(durable, key, 0)


def test_a_request_that_is_submitted_says_nothing_of_streams() -> None:
    request = RequestOptions(max_tokens=3, raw=True).plain_request("x")

    assert GenerateRequest(prompt="x", max_tokens=3) == request
    assert b"stream" not in msgspec.json.encode(request)
