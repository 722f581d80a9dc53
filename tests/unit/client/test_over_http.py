"""The client over HTTP, against a server that misbehaves."""

import asyncio
from typing import Any

import msgspec
import pytest

from slipstream.client import (
    AsyncClient,
    ClientClosedError,
    ConfigurationError,
    ConnectionLostError,
    DeadlineExceededError,
    HttpStatusError,
    RequestFailedError,
    ServerUnreachableError,
    SlipstreamError,
)
from slipstream.client.http_transport import HttpTransport
from slipstream.shared.errors import ProtocolError

from .http_server import (
    DROP,
    ENDING,
    HANG,
    LAST_CHUNK,
    STREAM_HEAD,
    USAGE,
    HttpServer,
    Script,
    answer,
    chunk,
    event,
    framed,
    refusal,
    serving,
)
from .scripted_stack import QUICK, WORDS

TEXT = "".join(WORDS)


def client_of(server: HttpServer, **options: Any) -> AsyncClient:
    """Any: of every type."""
    return AsyncClient(server.url, **{"retries": QUICK, "timeout_s": 5.0, **options})


async def read(*scripts: Script, **options: Any) -> tuple[list[str], AsyncClient, HttpServer]:
    """Return the pieces of a stream, which must end well. Any: of every type."""
    async with serving(*scripts) as server, client_of(server, **options) as client:
        async with client.stream([{"role": "user", "content": "hi"}]) as stream:
            pieces = [piece async for piece in stream]
        assert "".join(pieces) == stream.answer.text
    return pieces, client, server


async def test_an_answer_is_whole() -> None:
    async with serving(answer(*WORDS)) as server, client_of(server, api_key="secret") as client:
        got = await client.chat([{"role": "user", "content": "hi"}], max_tokens=4, seed=11)

    assert (TEXT, "stop", "m", "1", 11) == (
        got.text,
        got.finish_reason,
        got.model,
        got.request_id,
        got.seed,
    )
    usage = got.usage
    assert (3, 4, 2, 1, 3) == (
        usage.num_prompt_tokens,
        usage.num_output_tokens,
        usage.num_cached_tokens,
        usage.num_accepted_tokens,
        usage.num_tested_tokens,
    )
    (request,) = server.requests
    assert ("/v1/chat/completions", "Bearer secret") == (
        request.path,
        request.headers["authorization"],
    )
    assert (4, True) == (request.body["max_tokens"], request.body["stream"])
    assert 5000 < request.body["deadline_ms"] <= 6000


async def test_a_connection_is_used_again() -> None:
    async with serving(*[answer(*WORDS)] * 3) as server, client_of(server) as client:
        texts = [(await client.generate("Once")).text for _ in range(3)]

    assert [TEXT] * 3 == texts
    assert 1 == server.num_connections


async def test_a_server_that_does_not_end_a_stream_holds_nobody_up() -> None:
    async with serving([*answer(*WORDS)[:-1], HANG]) as server, client_of(server) as client:
        assert TEXT == (await client.generate("Once")).text
        await asyncio.sleep(0.05)

        assert 1 == server.num_left


async def test_a_url_may_end_as_other_clients_want_it() -> None:
    async with serving(answer("a")) as server, AsyncClient(server.url + "/v1/") as client:
        await client.generate("Once")

    assert "/v1/completions" == server.requests[0].path


async def test_what_our_gateway_says_of_an_answer_is_in_it() -> None:
    told = {"request": "ab", "trace_id": "feed", "attempt": 1, "route": "local", "queue_ms": 1.5}
    told |= {
        "prefill_ms": 2.0,
        "hand_over_ms": 0.5,
        "ttft_ms": 5.0,
        "tpot_ms": 1.0,
        "total_ms": 9.0,
    }
    told |= {"total_ms": 9.0, "num_cached_tokens": 2, "num_drafted_tokens": 7, "num_steps": 3}
    told["num_preemptions"] = 1
    usage = {**USAGE, "prompt_tokens_details": None}
    last = {"id": "chatcmpl-1", "model": "m", "choices": [], "usage": usage, "slipstream": told}
    script = [STREAM_HEAD, chunk("a"), ENDING[0], event(last), *ENDING[2:]]

    async with serving(script) as server, client_of(server) as client:
        got = await client.generate("Once")

    assert ("1", "feed", "local") == (got.request_id, got.trace_id, got.route)
    assert (2, 7, 3, 1) == (
        got.usage.num_cached_tokens,
        got.usage.num_drafted_tokens,
        got.usage.num_steps,
        got.usage.num_preemptions,
    )
    assert (1.5, 2.0, 0.5, 5.0, 1.0, 9.0) == tuple(msgspec.structs.astuple(got.timings))


async def test_times_of_other_servers_are_measured_here() -> None:
    script = [STREAM_HEAD, 0.05, chunk("a"), 0.06, chunk("b"), *ENDING]
    async with serving(script) as server, client_of(server) as client:
        timings = (await client.generate("Once")).timings

    assert 50 <= timings.ttft_ms < timings.total_ms
    assert 20 <= (timings.tpot_ms or 0) < timings.total_ms / 3


async def test_a_seed_and_token_ids_that_the_server_says_are_passed_on() -> None:
    script = [
        STREAM_HEAD,
        chunk("a", token_ids=[5, 6]),
        chunk("b", token_ids=[7], seed=99),
        *ENDING,
    ]
    async with serving(script) as server, client_of(server) as client:
        got = await client.generate("Once")

    assert ([5, 6, 7], 99) == (got.token_ids, got.seed)


BROKEN = [
    pytest.param([STREAM_HEAD, *map(chunk, WORDS[:2]), DROP], id="dropped between events"),
    pytest.param([STREAM_HEAD, chunk("Un"), b"40\r\ndata: {", DROP], id="dropped within one"),
    pytest.param([STREAM_HEAD, chunk("Un"), chunk("der"), LAST_CHUNK], id="ended without [DONE]"),
    pytest.param([STREAM_HEAD, DROP], id="dropped before any text"),
    pytest.param([DROP], id="dropped before the head"),
    pytest.param(
        [STREAM_HEAD, *map(chunk, WORDS), *ENDING[:2], DROP], id="dropped after the last text"
    ),
    pytest.param(
        [STREAM_HEAD, chunk("Un"), event({"error": {"code": "worker_lost", "message": "gone"}})],
        id="an error that may pass",
    ),
    pytest.param([STREAM_HEAD, chunk("Under t"), HANG], id="silence"),
    pytest.param([STREAM_HEAD, framed(b": keep-alive\n\n"), HANG], id="silence after a comment"),
    pytest.param(refusal(429, {"message": "full", "code": "overloaded"}), id="429"),
    pytest.param(refusal(503, None), id="503 of a proxy"),
    pytest.param(refusal(502, None), id="502"),
]


@pytest.mark.parametrize("script", BROKEN)
async def test_whatever_breaks_each_character_comes_once(script: Script) -> None:
    async with serving(script, script, answer("Unde", "r the b", "ridge")) as server:
        transport = HttpTransport(server.url, silence_s=0.1)
        client = AsyncClient(transport=transport, retries=QUICK, timeout_s=5)
        async with client, client.stream("Once", temperature=1.0) as stream:
            pieces = [piece async for piece in stream]

    assert (TEXT, TEXT, 2) == ("".join(pieces), stream.answer.text, stream.num_retries)
    assert 3 == len(server.requests)
    assert 1 == len({request.body["seed"] for request in server.requests})


async def test_a_request_may_wait_in_silence_before_it_begins() -> None:
    async with serving([0.15, STREAM_HEAD, 0.15, *answer(*WORDS)[1:]]) as server:
        transport = HttpTransport(server.url, silence_s=0.1)
        async with AsyncClient(transport=transport, retries=QUICK, timeout_s=5) as client:
            assert TEXT == (await client.generate("Once")).text

    assert 1 == len(server.requests)


async def test_a_server_that_names_a_time_is_not_asked_before_it() -> None:
    full = refusal(429, {"message": "full"}, Retry_After="0.3")
    began_s = asyncio.get_running_loop().time()
    pieces, _, _ = await read(full, answer(*WORDS))

    assert WORDS == pieces
    assert asyncio.get_running_loop().time() - began_s >= 0.3


async def test_a_refusal_is_typed() -> None:
    error = {"message": "top_k: too low", "code": "invalid_request", "param": "top_k"}
    async with serving(refusal(400, error)) as server, client_of(server) as client:
        with pytest.raises(HttpStatusError, match="top_k: too low") as raised:
            await client.generate("Once", top_k=-3)

    assert (400, "invalid_request", "top_k", None) == (
        raised.value.status,
        raised.value.code,
        raised.value.field,
        raised.value.retry_after_s,
    )
    assert isinstance(raised.value, RequestFailedError)


async def test_what_stays_refused_says_when_to_come_back() -> None:
    full = refusal(429, {"message": "full", "code": "overloaded"}, Retry_After="60")
    async with serving(full) as server, client_of(server) as client:
        with pytest.raises(HttpStatusError, match=r"try again in 60 s") as raised:
            await client.generate("Once")

    assert 60 == raised.value.retry_after_s


async def test_an_error_in_a_stream_ends_it() -> None:
    error = {"message": "no", "code": "non_finite"}
    script = [STREAM_HEAD, chunk("a"), event({"error": error}), HANG]
    async with (
        serving(script) as server,
        client_of(server) as client,
        client.stream("Once") as stream,
    ):
        assert "a" == await anext(stream)
        with pytest.raises(RequestFailedError, match="no") as raised:
            await anext(stream)
        await asyncio.sleep(0.05)

        assert ("non_finite", 1) == (raised.value.code, len(server.requests))
        assert 1 == server.num_left, "the connection is closed at once"


@pytest.mark.parametrize(
    ("script", "match"),
    [
        ([STREAM_HEAD, framed(b"data: {nonsense\n\n")], "no chunk"),
        ([STREAM_HEAD, chunk("a"), event("[DONE]"), LAST_CHUNK], "without a finish_reason"),
        (
            [b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi"],
            "text/html",
        ),
    ],
)
async def test_what_is_no_stream_is_said_to_be_none(script: Script, match: str) -> None:
    async with serving(script) as server, client_of(server) as client:
        with pytest.raises(ProtocolError, match=match):
            await client.generate("Once")


async def test_what_is_no_http_is_an_error_of_ours() -> None:
    garbage: list[Script] = [[b"\x00\x01\x02 what?\r\n\r\n", DROP]] * 4
    async with serving(*garbage) as server, client_of(server) as client:
        with pytest.raises(ConnectionLostError, match="broke"):
            await client.generate("Once")


async def test_nobody_there_is_an_error_with_a_remedy() -> None:
    async with serving() as server:
        url = server.url
    async with AsyncClient(url, retries=QUICK) as client:
        with pytest.raises(ServerUnreachableError, match=f"{url}.*slipstream up"):
            await client.generate("Once")


@pytest.mark.parametrize("script", [[HANG], [STREAM_HEAD, HANG], [STREAM_HEAD, chunk("a"), HANG]])
async def test_every_wait_has_a_deadline(script: Script) -> None:
    async with serving(script) as server:
        async with client_of(server, timeout_s=0.2) as client:
            with pytest.raises(DeadlineExceededError, match=r"within 0\.2 s"):
                await client.generate("Once")
        await asyncio.sleep(0.05)
        assert 1 == server.num_left


async def test_leaving_a_stream_closes_its_connection() -> None:
    async with serving([STREAM_HEAD, chunk("a"), chunk("b"), HANG]) as server:
        async with client_of(server) as client, client.stream("Once") as stream:
            await anext(stream)
            assert 0 == server.num_left
        await asyncio.sleep(0.05)

        assert stream.is_cancelled
        assert 1 == server.num_left


async def test_a_cancelled_task_closes_its_connection() -> None:
    async with serving([HANG]) as server, client_of(server) as client:
        task = asyncio.create_task(client.generate("Once"))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)

        assert 1 == server.num_left


async def test_many_requests_run_side_by_side() -> None:
    """More than a pool of connections usually has."""
    scripts = [[STREAM_HEAD, 2.0, *map(chunk, WORDS), *ENDING] for _ in range(150)]
    async with serving(*scripts) as server, client_of(server, timeout_s=20.0) as client:
        answers = await asyncio.gather(*(client.generate("Once") for _ in range(150)))

    assert {TEXT} == {got.text for got in answers}
    assert 150 == server.max_num_served


async def test_a_stream_that_is_entered_after_the_client_was_closed_says_so() -> None:
    client = AsyncClient("http://127.0.0.1:1")
    stream = client.stream("Once")
    await client.close()
    with pytest.raises(ClientClosedError):
        await stream.open()


@pytest.mark.parametrize("call", ["submit", "result"])
async def test_what_http_has_no_way_for_says_so(call: str) -> None:
    async with AsyncClient("http://127.0.0.1:1") as client:
        with pytest.raises(ConfigurationError, match="over NATS"):
            await getattr(client, call)("seq-1")


def test_errors_have_one_base() -> None:
    assert issubclass(HttpStatusError, SlipstreamError)
    assert issubclass(ConnectionLostError, SlipstreamError)
