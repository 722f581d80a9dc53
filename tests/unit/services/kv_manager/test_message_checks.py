"""Messages whose numbers mean nothing are refused before the books see them."""

import math

import pytest

from slipstream.services.kv_manager.message_checks import check_message
from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.ids import LeaseId, RequestId, WorkerId
from slipstream.shared.messages.kv import (
    Blocks,
    Commit,
    Grant,
    Known,
    KvRequest,
    Lease,
    LeaseRenewal,
    Match,
    Release,
    Renew,
)
from slipstream.shared.messages.packed import PackedInts

A = WorkerId("a")
R = {"request_id": RequestId("r"), "attempt": 1}
ODD = Blocks(PackedInts([1, 2]), PackedInts([1]))


def lease(**fields: object) -> Lease:
    given = {"worker_id": A, "worker_epoch": 1, "num_blocks": 1, "layout": "", **R, **fields}
    return Lease(**given)  # type: ignore[arg-type] # fields of every type


def commit(**fields: object) -> Commit:
    given = {"lease_id": LeaseId("l"), "worker_id": A, "num_tokens": 0, **R, **fields}
    return Commit(**given)  # type: ignore[arg-type] # as above


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (lease(num_blocks=-1), "num_blocks"),
        (lease(num_first_blocks=-1), "num_first_blocks"),
        (lease(num_spare_blocks=-(2**63)), "num_spare_blocks"),
        (lease(num_blocks=2**64 - 1), "num_blocks"),
        (lease(elapsed_ms=math.nan), "elapsed_ms"),
        (commit(num_tokens=-1), "num_tokens"),
        (commit(num_known_blocks=-1), "num_known_blocks"),
        (commit(num_wanted_blocks=-1), "num_wanted_blocks"),
        (commit(grown=ODD), "grown"),
        (Grant(A, 1, -1), "num_blocks"),
        (Grant(A, 1, 1, ODD), "returned"),
        (Match(PackedInts(), "", wait_ms=-1), "wait_ms"),
        (Known(-1), "first_block_id"),
        (Release(**R, grown=ODD), "grown"),  # type: ignore[arg-type] # as above
        (Renew(A, 1, [LeaseRenewal(LeaseId("l"), ODD)]), "renewals.grown"),
    ],
)
def test_a_number_that_means_nothing_is_refused_by_its_name(message: KvRequest, field: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        check_message(message)

    assert field == refused.value.field


@pytest.mark.parametrize("message", [lease(), commit(), Grant(A, 1, 0), Known(1)])
def test_what_workers_say_passes(message: KvRequest) -> None:
    check_message(message)
