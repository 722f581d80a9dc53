"""The client without an event loop of one's own: threads, interrupts, closing."""

import asyncio
import concurrent.futures
import signal
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from slipstream.client import (
    Client,
    ClientClosedError,
    ConfigurationError,
    RequestFailedError,
    Stream,
)
from slipstream.shared.client.loop_thread import LoopThread

from .scripted_stack import (
    ACCEPTED,
    ID,
    LOST,
    QUICK,
    REST,
    WORDS,
    ScriptedStack,
    frames,
    whole,
)

TEXT = "".join(WORDS)


def client_of(stack: ScriptedStack) -> Client:
    return Client(transport=stack.transport(), retries=QUICK, timeout_s=5)


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "slipstream-client"]


def test_calls_return_answers() -> None:
    stack = ScriptedStack(whole(*WORDS), whole("hello"))
    with client_of(stack) as client:
        generated = client.generate("Tell me", max_tokens=4)
        chatted = client.chat([{"role": "user", "content": "hi"}])
        key = client.submit("Tell me")
        assert client.result(key) is None

    assert (TEXT, "hello", "seq-1") == (generated.text, chatted.text, key)
    assert [] == threads()


def test_a_stream_is_read_in_a_loop() -> None:
    stack = ScriptedStack([ACCEPTED, *frames(*WORDS[:2]), REST, LOST], whole(*WORDS))
    with client_of(stack) as client, client.stream("Tell me", temperature=0.7) as stream:
        pieces = list(stream)

    assert WORDS == pieces
    assert (TEXT, False, 1) == (stream.answer.text, stream.is_cancelled, stream.num_retries)
    assert TEXT == stream.text


def test_leaving_a_stream_cancels_its_request() -> None:
    stack = ScriptedStack([ACCEPTED, *frames(*WORDS)])
    with client_of(stack) as client:
        with client.stream("Tell me") as stream:
            assert "Un" == next(stream)

        assert stream.is_cancelled
        assert [ID] == [cancel.request_id for cancel in stack.cancels]


@pytest.mark.parametrize("is_streamed", [True, False])
def test_ctrl_c_cancels_the_request(*, is_streamed: bool) -> None:
    stack = ScriptedStack([ACCEPTED, *frames("Un")])
    main = threading.main_thread().ident
    assert main is not None
    with client_of(stack) as client:
        timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        began_s = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            _ask(client, is_streamed=is_streamed)
        timer.join()

        assert time.monotonic() - began_s < 3, "it was the deadline that ended it"
        assert [ID] == [cancel.request_id for cancel in stack.cancels]
        assert [] == stack.inboxes
    assert [] == threads()


def test_ctrl_c_just_when_a_request_was_sent_cancels_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = ScriptedStack([ACCEPTED])
    run = LoopThread.run

    def interrupted(self: LoopThread, work: Coroutine[Any, Any, Any]) -> Any:
        result = run(self, work)
        if work.__name__ == "open":
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(LoopThread, "run", interrupted)
    with client_of(stack) as client:
        stream = client.stream("Tell me")
        with pytest.raises(KeyboardInterrupt):
            stream.__enter__()

        assert stream.is_cancelled
        assert [ID] == [cancel.request_id for cancel in stack.cancels]


def _ask(client: Client, *, is_streamed: bool) -> None:
    if not is_streamed:
        client.generate("Tell me")
    with client.stream("Tell me") as stream:
        list(stream)


async def test_it_works_where_a_loop_runs() -> None:
    """As in a notebook: there a call blocks the loop that runs, and must not need it."""
    with client_of(ScriptedStack(whole(*WORDS))) as client:
        assert TEXT == client.generate("Tell me").text
    assert asyncio.get_running_loop().is_running()


def test_threads_share_a_client() -> None:
    stack = ScriptedStack(*[whole(*WORDS)] * 40)
    with client_of(stack) as client, concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: client.generate("Tell me").text, range(40)))

    assert [TEXT] * 40 == texts


def test_closing_ends_what_other_threads_wait_for() -> None:
    stack = ScriptedStack([ACCEPTED], [ACCEPTED])
    client = client_of(stack)
    stream: list[Stream] = []

    def read() -> None:
        stream.append(client.stream("Tell me"))
        with stream[0]:
            list(stream[0])

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(read), pool.submit(client.generate, "Tell me")]
        time.sleep(0.2)
        client.close()
        errors = [each.exception(5) for each in waiting]

    assert [ClientClosedError] * 2 == [type(error) for error in errors]
    assert stream[0].is_cancelled
    assert [ID] * 2 == [cancel.request_id for cancel in stack.cancels]
    assert [] == threads()


def test_a_closed_client_says_so_and_can_be_closed_again() -> None:
    client = client_of(ScriptedStack())
    client.close()
    client.close()
    for call in (client.generate, client.submit, client.result):
        with pytest.raises(ClientClosedError):
            call("Tell me")
    with pytest.raises(ClientClosedError):
        client.stream("Tell me")


def test_a_stream_may_outlive_its_client() -> None:
    stack = ScriptedStack([ACCEPTED])
    client = client_of(stack)
    with client.stream("Tell me") as stream:
        client.close()
        with pytest.raises(ClientClosedError):
            next(stream)

    assert stream.is_cancelled


def test_a_client_that_can_not_be_leaves_no_thread() -> None:
    with pytest.raises(ConfigurationError):
        Client("localhost")

    assert [] == threads()


def test_an_error_leaves_the_client_as_it_was() -> None:
    stack = ScriptedStack(*[[LOST]] * 4, whole(*WORDS))
    with client_of(stack) as client:
        with pytest.raises(RequestFailedError):
            client.generate("Tell me")
        with pytest.raises(TypeError, match="max_tokens"):
            client.generate("Tell me", max_token=3)  # type: ignore[call-arg] # what is tested
        assert TEXT == client.generate("Tell me").text
