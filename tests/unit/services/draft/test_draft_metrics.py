"""The draft worker counts what it offers."""

from slipstream.services.draft.metrics import DraftMetrics
from slipstream.services.draft.proposer import Proposer
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.draft import DraftClose, DraftJob, DraftOpen, DraftWant
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.telemetry.prometheus_meter import PrometheusMeter

R = RequestId("r")


def test_offered_tokens_and_followed_sequences_are_counted() -> None:
    meter, proposer = PrometheusMeter(), Proposer(1, 3, 8)
    metrics = DraftMetrics(meter, lambda: proposer.num_sequences)
    read = meter.registry.get_sample_value
    followed = {"role": "draft", "state": "running"}
    before = read("slipstream_draft_tokens_total", {"outcome": "offered"})
    proposer.open(DraftOpen(request_id=R, attempt=1, token_ids=PackedInts([1, 2, 3, 1])))
    wants = [DraftWant(each, 1, 4, PackedInts([]), 2) for each in (R, RequestId("unknown"))]
    metrics.offered(proposer.propose(DraftJob(wants)))

    assert (0, 2) == (before, read("slipstream_draft_tokens_total", {"outcome": "offered"}))
    assert 1 == read("slipstream_requests", followed)
    proposer.close(DraftClose(request_id=R, attempt=1))
    assert 0 == read("slipstream_requests", followed)
