"""Each trouble of the server has one name in the log."""

from typing import Any

import nats.errors
import pytest

from slipstream.shared.bus.nats_trouble import denial_in, is_old, server_problem, trouble_of

DENIED = 'nats: permissions violation for publish to "a.b"'


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (nats.errors.SlowConsumerError("a.b", "", 1, None), "nats_slow_consumer"),
        (nats.errors.FlushTimeoutError(), "nats_write_stalled"),
        (nats.errors.UnexpectedEOF(), "nats_connection_broken"),
        (nats.errors.StaleConnectionError(), "nats_silent"),
        (nats.errors.AuthorizationError(), "nats_not_authorized"),
        (nats.errors.Error("nats: 'Authorization Violation'"), "nats_not_authorized"),
        (nats.errors.Error("nats: maximum connections exceeded"), "nats_connections_exceeded"),
        (nats.errors.Error("nats: Maximum Payload Violation"), "nats_payload_refused"),
        (nats.errors.Error(DENIED), "nats_permission_denied"),
        (ConnectionRefusedError(111, "refused"), "nats_unreachable"),
        (nats.errors.Error("nats: something else"), "nats_error"),
    ],
)
def test_troubles_have_names(error: Exception, event: str) -> None:
    assert event == trouble_of(error).event


def test_a_denial_says_what_is_denied() -> None:
    denial = denial_in(nats.errors.Error(DENIED))
    assert denial is not None

    assert ("publish", "a.b") == (denial.verb, denial.subject)
    assert {"verb", "subject", "remedy"} == trouble_of(nats.errors.Error(DENIED)).fields.keys()


@pytest.mark.parametrize(
    ("info", "is_refused", "is_too_old"),
    [
        ({"headers": True, "version": "2.11.4"}, False, False),
        ({"headers": True, "version": "2.9.25"}, False, True),
        ({"headers": True, "version": "3.0.0-beta"}, False, False),
        ({"headers": True}, False, False),
        ({"headers": False, "version": "2.12.0"}, True, False),
        ({"version": "2.1.0"}, True, True),
    ],
)
def test_a_server_is_judged_by_what_it_says_of_itself(
    info: dict[str, Any], is_refused: bool, is_too_old: bool
) -> None:
    assert is_refused == (server_problem(info) is not None)
    assert is_too_old == is_old(info)
