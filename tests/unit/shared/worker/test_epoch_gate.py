"""Whoever slept through a succession of schedulers is refused."""

from slipstream.shared.ids import RequestId
from slipstream.shared.messages.generate import Cancel
from slipstream.shared.messages.reports import ReportRequest
from slipstream.shared.worker.epoch_gate import EpochGate


def test_lower_epoch_than_the_highest_seen_is_refused() -> None:
    gate = EpochGate()
    seen = [gate.is_stale(ReportRequest(epoch)) for epoch in (7, 7, 9, 7, 9)]

    assert [False, False, False, True, False] == seen
    assert 9 == gate.highest


def test_no_epoch_is_never_stale() -> None:
    """Without a leader bucket there is nothing to go by, and clients name none."""
    gate = EpochGate()
    gate.is_stale(ReportRequest(9))

    assert gate.refusal(Cancel(RequestId("r"))) is None


def test_refusal_names_both_epochs() -> None:
    gate = EpochGate()
    gate.is_stale(ReportRequest(9))
    failed = gate.refusal(Cancel(RequestId("r"), scheduler_epoch=8))

    assert failed is not None
    assert ("stale_epoch", True) == (failed.code, "8" in failed.message and "9" in failed.message)
