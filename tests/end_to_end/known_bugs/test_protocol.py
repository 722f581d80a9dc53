"""Known bugs of the protocol: malformed bodies, ids of clients, sizes, nobody there."""

import asyncio
import time

import pytest
from nats.errors import NoRespondersError

from slipstream.shared.bus.subjects import GENERATE
from tests.conftest import NatsServer
from tests.end_to_end import client, stack
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]

_MIB = 1024 * 1024
_AIM_S = 3.0  # a hundred times what it takes
_GREEDY = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "max_tokens": 4,,}',
        b"",
        b'{"prompt": "Hel',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800"}',
        b"[]",
        b"null",
        b"\x81\xa6prompt\xa5Hel",
        b"{" * 100_000,
    ],
    ids=lambda body: repr(body[:24]),
)
async def test_b102_a_malformed_body_is_an_error_with_code_and_message(
    fake: client.Client, body: bytes
) -> None:
    await recipes.check_refused(fake, body, None)


async def test_b104_an_unknown_model_is_named(fake: client.Client) -> None:
    request = {"prompt": "Once", "model": "gpt-9"}

    await recipes.check_refused(fake, request, "model", "model_not_found")


async def test_b104_too_many_tokens_are_refused_alike_in_a_stream(fake: client.Client) -> None:
    request = {"prompt": "Once", "max_tokens": 999_999}

    failed = await recipes.check_refused(fake, request, "max_tokens")
    found = await fake.stream(request)

    assert ["failed"] == [each["type"] for each in found.messages]
    same = ("code", "message", "field", "limit")
    assert [failed[name] for name in same] == [found.ending[name] for name in same]


async def test_b109_two_requests_under_one_client_s_id_are_two(fake: client.Client) -> None:
    requests = [
        {**_GREEDY, "prompt": prompt, "client_request_id": "mine"} for prompt in ("One", "Two")
    ]
    alone = [await fake.ask(each | {"client_request_id": None}) for each in requests]

    streams = await asyncio.gather(*(fake.stream(each) for each in requests))

    assert [client.text_of(each) for each in alone] == [each.text for each in streams]
    assert 2 == len({each.ending["request_id"] for each in streams})


async def test_b109_a_client_s_id_stands_in_the_logs(
    fake: client.Client, fake_stack: stack.Stack
) -> None:
    mine = f"mine-{time.monotonic_ns()}"

    answer = await fake.ask({**_GREEDY, "prompt": "One", "client_request_id": mine})

    def events() -> set[str]:
        lines = [line for line in fake_stack.log if line.get("client_request_id") == mine]
        assert {answer["request_id"]} >= {line["request_id"] for line in lines}
        return {line["event"] for line in lines}

    assert await asyncio.to_thread(
        stack.wait_until, lambda: {"request_admitted", "request_ended"} <= events(), 20
    )


async def test_b109_an_id_can_be_used_again_after_an_abort(fake: client.Client) -> None:
    request = {**_GREEDY, "prompt": "One", "max_tokens": 4000, "client_request_id": "mine"}
    async for message in fake.messages(request):
        if message["type"] == "accepted":
            await fake.cancel(message["request_id"])

    again = await fake.ask({**_GREEDY, "prompt": "Two", "client_request_id": "mine"})
    other = await fake.ask({**_GREEDY, "prompt": "Two"})

    assert "abort" == message.get("finish_reason", "abort")
    assert client.text_of(other) == client.text_of(again)


async def test_b109_a_message_id_of_nats_is_no_key(fake: client.Client) -> None:
    payloads = [client.encode({**_GREEDY, "prompt": prompt}) for prompt in ("One", "Two")]
    headers = {"Nats-Msg-Id": "mine"}

    answers = await asyncio.gather(
        *(
            fake.connection.request(GENERATE.subject(), payload, timeout=30, headers=headers)
            for payload in payloads
        )
    )

    texts = [client.text_of(client.decode(answer.data)) for answer in answers]
    assert 2 == len(set(texts))


async def test_b110_a_prompt_of_two_megabytes_is_refused_with_both_sizes(
    fake: client.Client,
) -> None:
    request = {"prompt": "a" * 2 * _MIB}
    began_s = time.monotonic()

    failed = await recipes.check_refused(fake, request, None, "message_too_large")

    assert time.monotonic() - began_s < _AIM_S
    assert _MIB == failed["limit"]
    assert str(len(client.encode(request))) in failed["message"]


async def test_b110_nobody_there_is_an_answer_and_no_timeout(nats_server: NatsServer) -> None:
    async with client.connected(nats_server.url) as asking:
        with pytest.raises(NoRespondersError):
            await asking.ask({"prompt": "Hello"}, timeout_s=30)
