"""Any NATS client can use it: JSON or msgpack, one answer or a stream."""

import asyncio

import pytest

from slipstream.shared.bus.subjects import GENERATE, GENERATE_MODEL

from . import client

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(120)]

_REQUEST = {"prompt": "The quick brown fox", "temperature": 0, "max_tokens": 12}


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_an_answer_is_encoded_as_its_request(
    real_client: client.Client, encoding: client.Encoding
) -> None:
    payload = client.encode(_REQUEST, encoding)

    message = await real_client.connection.request(GENERATE.subject(), payload, timeout=60)

    assert encoding == client.encoding_of(message.data)
    assert 12 == len(client.token_ids_of(client.decode(message.data)))


async def test_encodings_and_subjects_give_the_same_tokens(real_client: client.Client) -> None:
    plain = await real_client.ask(_REQUEST)
    packed = await real_client.ask(_REQUEST, encoding="msgpack")
    by_name = await real_client.ask(_REQUEST, subject=GENERATE_MODEL.subject(model="smollm2-135m"))

    assert client.token_ids_of(plain) == client.token_ids_of(packed)
    assert client.token_ids_of(plain) == client.token_ids_of(by_name)
    assert client.text_of(plain) == client.text_of(packed)


@pytest.mark.parametrize("route", ["remote", "local"])
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_a_stream_is_numbered_frames_and_one_ending(
    real_client: client.Client, encoding: client.Encoding, route: str
) -> None:
    request = {**_REQUEST, "route": route}

    plain = await real_client.ask(request)
    found = await real_client.stream(request, encoding=encoding)

    kinds = [each["type"] for each in found.messages]
    assert "accepted" == kinds[0]
    assert {"token_frame"} == set(kinds[1:-1])
    assert "finished" == kinds[-1]
    assert len(found.frames) > 1
    assert client.token_ids_of(plain) == found.token_ids
    assert client.text_of(plain) == found.text
    assert len(found.token_ids) == found.ending["num_tokens"]
    assert len(found.text) == found.ending["text_length"]
    assert route == found.ending["route"]
    ids = {each["request_id"] for each in found.messages}
    assert 1 == len(ids)


async def test_a_cancel_ends_a_stream_and_may_be_repeated(real_client: client.Client) -> None:
    kinds = []
    request = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True}

    async for message in real_client.messages(request):
        kinds.append(message["type"])
        if "token_frame" == message["type"] and kinds.count("token_frame") == 2:
            first = await real_client.cancel(message["request_id"])
        last = message
    # Until the worker's next report it counts as running.
    async with asyncio.timeout(5):
        while "ended" != (await real_client.cancel(last["request_id"]))["phase"]:
            await real_client.report_of("decode")

    assert "decoding" == first["phase"]
    assert ("finished", "abort") == (last["type"], last["finish_reason"])
    assert last["num_tokens"] < 400
