"""Who made an attempt fail: as a table."""

import pytest

from slipstream.services.scheduler.blame import who_failed
from slipstream.shared.ids import HostId, WorkerId
from slipstream.shared.scheduling.placed import Placement

D, P = WorkerId("d"), WorkerId("p")
PLACEMENT = Placement(D, HostId("h"), P, "remote", "test")


@pytest.mark.parametrize(
    ("code", "told_by", "expected"),
    [
        ("lost", P, P),
        ("worker_no_seat", P, P),
        ("decode_no_seat", P, D),
        ("decode_draining", P, D),
        ("no_responders", P, D),
        ("kv_transfer_failed", D, P),
        ("kv_no_common_plane", D, P),
        ("kv_lost", D, D),
    ],
)
def test_not_always_the_one_that_says_so(code: str, told_by: WorkerId, expected: WorkerId) -> None:
    assert expected == who_failed(code, PLACEMENT, told_by)
    assert told_by == who_failed(code, None, told_by)
