"""Errors whose fields build their message; `code` is what travels in a `Failed` answer."""


class SlipstreamError(Exception):
    """Base of every error that Slipstream raises on purpose. `code` is its name on the wire."""

    code = "internal_error"


class ConfigurationError(SlipstreamError):
    """A setting can't work; the message names the setting and the remedy."""

    code = "configuration_error"


class InvalidRequestError(SlipstreamError):
    """The request can't be served as it stands: `field` says where, the message how to mend it."""

    code = "invalid_request"

    def __init__(self, field: str, message: str, *, limit: float | None = None) -> None:
        self.field = field
        self.limit = limit
        super().__init__(f"{field}: {message}" if field else message)


class ContextLengthError(InvalidRequestError):
    """The prompt leaves no room for a single output token."""

    code = "context_length_exceeded"


class UnknownModelError(InvalidRequestError):
    """The request names a model that is not served here."""

    code = "model_not_found"


class MessageTooLargeError(SlipstreamError):
    """A message is larger than a limit; refused before anything is published."""

    code = "message_too_large"

    def __init__(self, num_bytes: int, limit: int, what: str = "message") -> None:
        self.num_bytes = num_bytes
        self.limit = limit
        super().__init__(f"{what} of {num_bytes} bytes is above the limit of {limit} bytes")


class ProtocolError(SlipstreamError):
    """Bytes that are no message of the expected kind."""

    code = "protocol_error"


class NoRespondersError(SlipstreamError):
    """Nobody listens on the subject: the other side is gone or not up yet."""

    code = "no_responders"

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"nobody listens on {subject}")


class DisconnectedError(SlipstreamError):
    """The connection to the bus is closed for good, or what it holds back meanwhile is full."""

    code = "disconnected"

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"no connection to send on {subject}")


class NotPermittedError(SlipstreamError):
    """The server does not let us publish or listen there."""

    code = "not_permitted"

    def __init__(self, verb: str, subject: str) -> None:
        self.subject = subject
        super().__init__(
            f"the NATS server does not let us {verb} {subject}: its user needs the permission"
        )


class DeadlineExceededError(SlipstreamError):
    """A wait ended without what was waited for."""

    code = "deadline_exceeded"

    def __init__(self, what: str, seconds: float) -> None:
        self.what = what
        self.seconds = seconds
        super().__init__(f"no {what} within {seconds:g} s")


class ServiceDrainedError(SlipstreamError):
    """A service has done what it held and ends, as it was told."""

    code = "drained"

    def __init__(self) -> None:
        super().__init__("drained: nothing is held here any more")


class DeadlineTooShortError(SlipstreamError):
    """A request could not be served in time on an idle system either."""

    code = "deadline_exceeded"


class OverloadedError(SlipstreamError):
    """A request would be served too late; the message says by how much."""

    code = "overloaded"

    def __init__(self, message: str, retry_after_ms: int) -> None:
        self.retry_after_ms = retry_after_ms
        super().__init__(message)


class NoAnswerError(DeadlineExceededError):
    """
    A call was not answered in time: asking again, or somebody else, can help.

    Not the request's own deadline, whose code ends the request for good.
    """

    code = "no_answer"


class NonFiniteLogitsError(SlipstreamError):
    """A row has no finite logit, or a NaN: its request ends, its neighbours don't notice."""

    code = "non_finite_logits"


class ConstraintError(SlipstreamError):
    """A constraint can't be compiled, costs too much, or leaves a request no token."""

    code = "constraint_failed"


class ModelError(SlipstreamError):
    """A model can't be found, fetched, read or run; the message says which and what to do."""

    code = "model_error"


class ArenaError(SlipstreamError):
    """The shared memory of the KV cache can't be made, mapped or trusted."""

    code = "arena_error"
