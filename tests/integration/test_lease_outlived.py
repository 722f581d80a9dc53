"""A step that outlives its leases, as one of a frozen worker does: what it brings isn't told."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from slipstream.shared.model.runner import SequenceRows

from .worker_pair import Hosted

pytestmark = pytest.mark.nats


@pytest.mark.parametrize("is_broken", [False, True], ids=["step", "step that fails"])
async def test_no_token_of_a_step_is_told_whose_lease_ran_out_inside_it(
    hosted: Hosted, *, is_broken: bool
) -> None:
    """Others may have written where it still read."""
    host = hosted.decode._parts.host
    forward = host.engine.forward

    def outlive(batch: Sequence[SequenceRows]) -> Any:  # Any: logits
        for held in host.keeper._held.values():
            held.expires_at = time.monotonic()
        if is_broken:
            raise RuntimeError("it read what it did not write")
        return forward(batch)

    host.engine.forward = outlive
    job = hosted.decode_job()
    await hosted.send(job)

    assert "lease_lost" == (await hosted.until_ended("decode", job.request_id)).code
    assert [] == hosted.answers
    await hosted.until_free()
