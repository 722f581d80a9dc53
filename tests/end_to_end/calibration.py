"""What lies between steps, from requests that were served alone."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from slipstream.shared.simulation.cluster import ClusterSettings
from slipstream.shared.simulation.costs import Costs, Delays, StepTimes
from slipstream.shared.simulation.live_record import LiveRecord
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.simulation.run import Simulation

NO_DELAYS = Delays(
    admit_s=0.0,
    dispatch_s=0.0,
    lease_s=0.0,
    hand_over_s=0.0,
    pull_token_s=0.0,
    answer_s=0.0,
    report_s=0.0,
    step_gap_s=0.0,
)
# Parts of what a first token takes longer than the steps before it: three messages to get there,
# and the hand-over with as many to get back.
_ADMIT, _DISPATCH, _LEASE, _HAND_OVER = 0.2, 0.2, 0.15, 0.45


def calibrated(
    steps: StepTimes,
    records: Sequence[LiveRecord],
    requests: Sequence[SimulatedRequest],
    cluster: ClusterSettings,
) -> Costs:
    """
    Return costs with the delays of requests that were served one after another.

    Without delays a simulation takes just the time of the steps; what the live ones took longer is
    what lies between. The requests are used up.
    """
    for record, request in zip(records, requests, strict=True):
        request.arrived_at = record.arrived_at
    Simulation(cluster, Costs(steps=steps, delays=NO_DELAYS)).serve(requests)
    extra_s = statistics.median(
        record.first_at - record.arrived_at - (request.ttft_s or 0.0)
        for record, request in zip(records, requests, strict=True)
    )
    gaps_s = [
        (record.ended_at - record.first_at) / (record.num_output_tokens - 1) - request.tpot_s
        for record, request in zip(records, requests, strict=True)
        if request.tpot_s is not None
    ]
    extra_s = max(0.0, extra_s)
    delays = replace(
        NO_DELAYS,
        admit_s=_ADMIT * extra_s,
        dispatch_s=_DISPATCH * extra_s,
        lease_s=_LEASE * extra_s,
        hand_over_s=_HAND_OVER * extra_s,
        report_s=_DISPATCH * extra_s,
        step_gap_s=max(0.0, statistics.median(gaps_s)) if gaps_s else 0.0,
    )
    return Costs(steps=steps, delays=delays)
