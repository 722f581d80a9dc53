"""Which failures are tried again, and when."""

import pytest

from slipstream.client.errors import (
    ConnectionLostError,
    HttpStatusError,
    NoSchedulerError,
    ServerUnreachableError,
)
from slipstream.client.retries import Retries, may_pass
from slipstream.shared.client.answers import IncompleteStreamError, RequestFailedError
from slipstream.shared.errors import DeadlineExceededError, ProtocolError, SlipstreamError
from slipstream.shared.messages.common import Failed

RETRIES = Retries(max_num_retries=4, first_s=1.0, longest_s=3.0)


def failed(code: str, retry_after_ms: int | None = None) -> RequestFailedError:
    return RequestFailedError(Failed(code=code, message="no", retry_after_ms=retry_after_ms))


@pytest.mark.parametrize(
    "error",
    [
        failed("overloaded"),
        failed("worker_lost"),
        failed("anything", 10),
        HttpStatusError(429, Failed(code="rate_limit", message="no")),
        HttpStatusError(503, Failed(code="http_503", message="no")),
        NoSchedulerError("here"),
        ConnectionLostError("broke"),
        ServerUnreachableError("http://here", "refused"),
        IncompleteStreamError("tokens are missing"),
    ],
)
def test_what_may_pass_is_tried_again(error: SlipstreamError) -> None:
    assert may_pass(error)


@pytest.mark.parametrize(
    "error",
    [
        failed("invalid_request"),
        failed("cancelled"),
        failed("deadline_exceeded"),
        HttpStatusError(400, Failed(code="invalid_request", message="no")),
        HttpStatusError(404, Failed(code="model_not_found", message="no")),
        HttpStatusError(500, Failed(code="internal_error", message="no")),
        DeadlineExceededError("ending", 3),
        ProtocolError("garbage"),
    ],
)
def test_what_stays_as_it_is_is_not(error: SlipstreamError) -> None:
    assert not may_pass(error)
    assert RETRIES.pause_s(error, 1) is None


def test_pauses_double_up_to_the_longest_and_end() -> None:
    pauses = [RETRIES.pause_s(failed("lost"), number, lambda: 0.0) for number in range(1, 6)]

    assert [1.0, 2.0, 3.0, 3.0, None] == pauses


def test_jitter_takes_up_to_half_of_a_pause() -> None:
    assert 0.5 == RETRIES.pause_s(failed("lost"), 1, lambda: 1.0)


def test_a_server_that_names_a_time_is_not_asked_before_it() -> None:
    pause_s = RETRIES.pause_s(failed("overloaded", 2500), 1, lambda: 1.0)

    assert 3.0 == pause_s
