"""The client for programs without an event loop, or beside one."""

from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from slipstream.client.async_client import DEFAULT_TIMEOUT_S, AsyncClient
from slipstream.client.errors import ClientClosedError
from slipstream.client.options import ChatTurn, Options, Prompt, Question
from slipstream.client.retries import Retries
from slipstream.client.streams import AsyncStream
from slipstream.client.transport import Transport
from slipstream.shared.bus.nats_access import NO_ACCESS, NatsAccess
from slipstream.shared.client.answers import Answer
from slipstream.shared.client.loop_thread import LoopThread
from slipstream.shared.nats_config import DEFAULT_NATS_URL

T = TypeVar("T")


class Stream:
    """
    The text of one request as it comes; one thread reads it.

    The request is sent when its `with` block is entered. Leaving the block before the end, however
    that comes about, cancels the request; `is_cancelled` says so.
    """

    def __init__(self, thread: LoopThread, stream: AsyncStream) -> None:
        self._thread = thread
        self._stream = stream

    @property
    def is_cancelled(self) -> bool:
        """Whether the request was cancelled."""
        return self._stream.is_cancelled

    @property
    def answer(self) -> Answer:
        """The whole answer. Raises UnfinishedStreamError before the end."""
        return self._stream.answer

    @property
    def text(self) -> str:
        """The text that has come so far."""
        return self._stream.text

    @property
    def num_retries(self) -> int:
        """How often the request was sent again."""
        return self._stream.num_retries

    def read(self) -> Answer:
        """Read the rest, and return the whole answer."""
        return self._thread.run(self._stream.read())

    def close(self) -> None:
        """Cancel the request unless it has ended. Bounded; may be called again."""
        self._thread.run(self._stream.close())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        piece = self._thread.run(self._stream.next_piece())
        if piece is None:
            raise StopIteration
        return piece

    def __enter__(self) -> Self:
        try:
            self._thread.run(self._stream.open())
        except BaseException:
            # Interrupted just when the request was sent: nobody else would cancel it.
            self._close_if_possible()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close_if_possible()

    def _close_if_possible(self) -> None:
        if not self._thread.is_stopped:  # else the client's end has ended it
            self.close()


class Client:
    """
    Asks a running stack, over NATS (`nats://`, `tls://`) or HTTP (`http://`, `https://`).

    Any number of threads may share one. It does its work on a thread of its own, so it can be used
    where an event loop runs, as in a notebook. For example:

        with Client("http://127.0.0.1:8000") as client:
            print(client.chat([{"role": "user", "content": "Name three rivers."}]).text)
            with client.stream("Once upon a time", temperature=0.7, seed=7) as stream:
                for piece in stream:
                    print(piece, end="", flush=True)
    """

    def __init__(
        self,
        url: str = DEFAULT_NATS_URL,
        *,
        api_key: str | None = None,
        nats_access: NatsAccess = NO_ACCESS,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: Retries | None = None,
        transport: Transport | None = None,
    ) -> None:
        """`timeout_s` is for whole answers, retries included; `transport` replaces the URL's."""
        self._client = AsyncClient(
            url,
            api_key=api_key,
            nats_access=nats_access,
            timeout_s=timeout_s,
            retries=retries,
            transport=transport,
        )
        self._thread = LoopThread("slipstream-client", ClientClosedError)

    def generate(
        self, prompt: Prompt, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Answer:
        """Return what follows a raw text, or token ids. Ctrl-C cancels the request."""
        return self._run(self._client.generate(prompt, timeout_s=timeout_s, **options))

    def chat(
        self,
        messages: Sequence[ChatTurn],
        *,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Answer:
        """
        Return the answer to chat messages, which go through the model's template.

        For example `client.chat([{"role": "user", "content": "Name three rivers."}])`.
        """
        return self._run(self._client.chat(messages, timeout_s=timeout_s, **options))

    def stream(
        self, question: Question, *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Stream:
        """Return a stream to enter and read: of a raw text, token ids or chat messages."""
        return Stream(self._thread, self._client.stream(question, timeout_s=timeout_s, **options))

    def submit(
        self, question: Question, *, request_key: str | None = None, **options: Unpack[Options]
    ) -> str:
        """
        Store a request with the server, and return the key of its result.

        Under a `request_key` of your own it has one result, however often it is submitted.
        """
        return self._run(self._client.submit(question, request_key=request_key, **options))

    def result(self, key: str, *, wait_s: float = 0.0) -> Answer | None:
        """
        Return the answer under a key, or None when there is none within so many seconds.

        Raises RequestFailedError when the request failed.
        """
        return self._run(self._client.result(key, wait_s=wait_s))

    def close(self) -> None:
        """Cancel what is still being read, disconnect, end the thread. May be called again."""
        if not self._thread.is_stopped:
            try:
                self._run(self._client.close())
            except ClientClosedError:
                pass  # another thread closed it meanwhile
            finally:
                self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:  # Any: a coroutine's send type
        return self._thread.run(work)
