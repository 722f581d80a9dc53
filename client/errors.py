"""What a client raises beside the errors of `slipstream.shared`; all are SlipstreamErrors."""

from slipstream.shared.client.answers import RequestFailedError
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.messages.common import Failed


class ServerUnreachableError(SlipstreamError):
    """Nobody answers at the client's URL."""

    code = "server_unreachable"

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        super().__init__(
            f"no server answers at {url} ({reason}); start one with `slipstream up`, or give the "
            "client another URL"
        )


class NoSchedulerError(SlipstreamError):
    """The NATS server is there, and no scheduler listens on it."""

    code = "no_responders"

    def __init__(self, where: str) -> None:
        super().__init__(f"no scheduler listens at {where}; start one with `slipstream up`")


class ConnectionLostError(SlipstreamError):
    """A connection broke, or fell silent, before the answer's end."""

    code = "connection_lost"


class HttpStatusError(RequestFailedError):
    """The HTTP server refused the request; `status` is what it answered."""

    def __init__(self, status: int, failed: Failed) -> None:
        self.status = status
        super().__init__(failed)


class RepeatDiffersError(SlipstreamError):
    """A stream broke, and its repeat says something else than was read already."""

    code = "repeat_differs"

    def __init__(self, num_characters: int) -> None:
        super().__init__(
            f"the stream broke after {num_characters} characters, and its repeat differs from them;"
            " ask again"
        )


class UnfinishedStreamError(SlipstreamError):
    """A stream was asked for the answer that it does not have (yet)."""

    code = "unfinished_stream"

    def __init__(self) -> None:
        super().__init__("the stream has no answer: read it to its end, by a loop or by `read()`")


class ClientClosedError(SlipstreamError):
    """The client was closed before, or while it waited."""

    code = "client_closed"

    def __init__(self) -> None:
        super().__init__("the client is closed; make a new one")
