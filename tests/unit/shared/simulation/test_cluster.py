"""What a request waits for, in clusters so small that it can be said beforehand."""

from dataclasses import replace

import pytest

from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import LatencyClassName, Route
from slipstream.shared.simulation.cluster import ClusterSettings
from slipstream.shared.simulation.costs import Costs, Delays, StepTimes, fake_steps
from slipstream.shared.simulation.live_record import LiveRecord
from slipstream.shared.simulation.owner import WorkerRules
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.simulation.run import Simulation
from tests.end_to_end.calibration import NO_DELAYS, calibrated

STEPS = fake_steps(step_ms=10, row_us=100, context_token_ns=0)
DELAYS = Delays(
    admit_s=0.001,
    dispatch_s=0.002,
    lease_s=0.003,
    hand_over_s=0.004,
    pull_token_s=1e-5,
    answer_s=0.005,
    report_s=0.006,
    step_gap_s=0.0,
)
COSTS = Costs(steps=STEPS, delays=DELAYS)
ONE_HOST = ClusterSettings()


def request(
    number: int = 0,
    at: float = 0.0,
    prompt: int = 200,
    output: int = 3,
    route: Route = "remote",
) -> SimulatedRequest:
    return SimulatedRequest(
        request_id=RequestId(str(number)),
        arrived_at=at,
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        max_tokens=output,
        route=route,
    )


def served(
    *asked: SimulatedRequest, cluster: ClusterSettings = ONE_HOST, costs: Costs = COSTS
) -> list[SimulatedRequest]:
    Simulation(cluster, costs).serve(asked)
    return list(asked)


def test_a_request_alone_waits_for_messages_and_its_own_steps() -> None:
    (remote,) = served(request())
    (local,) = served(request(route="local"))

    assert 0.001 == remote.placed_at
    assert 0.001 + 0.002 + 0.003 + 0.030 + 0.004 == pytest.approx(remote.ttft_s)
    assert 0.001 + 0.002 + 0.003 + 0.030 + 0.005 == pytest.approx(local.ttft_s)
    # Two more tokens, each a step of one row; the ending has its way to the client, too.
    assert (2 * 0.0101 + 0.005) / 2 == pytest.approx(remote.tpot_s)


def test_kv_from_another_host_takes_its_time_by_the_token() -> None:
    (apart,) = served(request(prompt=200), cluster=replace(ONE_HOST, is_apart=True))
    (near,) = served(request(prompt=200))

    assert 200 * 1e-5 == pytest.approx((apart.ttft_s or 0) - (near.ttft_s or 0))


def test_who_comes_during_a_step_joins_the_next_one() -> None:
    """Two streams: the second has its first token in the middle of a step of the first."""
    first = request(0, prompt=100, output=50)
    second = request(1, at=0.1, prompt=100, output=2)
    served(first, second)
    # The first had its first token after 30 ms, and steps of 10.1 ms from then on.
    began_at = 0.001 + 0.002 + 0.003 + 0.020 + 0.004
    came_at = 0.1 + began_at
    num_steps = -(-(came_at - began_at) // 0.0101)

    assert came_at == pytest.approx(second.first_at)
    end = began_at + num_steps * 0.0101 + 0.0102 + 0.005
    assert end == pytest.approx(second.ended_at)


def test_a_full_worker_keeps_others_waiting_until_it_tells_of_a_free_seat() -> None:
    one_seat = replace(ONE_HOST, workers=WorkerRules(num_decode_seats=1))
    first, second = served(request(0), request(1, at=0.0001), cluster=one_seat)

    ended_at = (first.ended_at or 0) - DELAYS.answer_s
    assert ended_at + DELAYS.report_s == pytest.approx(second.placed_at)


def test_an_urgent_prompt_has_a_step_of_its_own_on_a_prefill_worker() -> None:
    """Beside an equal one it shares a step of 512 rows: 412 of them, 41.2 ms, aren't its own."""
    rows_only = replace(ONE_HOST, workers=WorkerRules(prompt_step_s=10.0))

    def first_token_s(urgent: LatencyClassName, other: LatencyClassName) -> float:
        long = replace(request(0, prompt=4000), latency_class=other)
        short = replace(request(1, at=0.1, prompt=100), latency_class=urgent)
        served(long, short, cluster=rows_only)
        return short.ttft_s or 0.0

    assert 0.0412 == pytest.approx(
        first_token_s("standard", "standard") - first_token_s("interactive", "batch")
    )


def test_neighbours_on_one_host_slow_each_other_down() -> None:
    slow = replace(COSTS, decode_slowdown=1.0)
    streaming, _ = served(request(0, output=40), request(1, at=0.1, prompt=500), costs=slow)
    alone, _ = served(request(0, output=40), request(1, at=0.1, prompt=500))

    # Beside a step of the prompt, 60 ms, each takes twice as long.
    assert 0.03 == pytest.approx((streaming.ended_at or 0) - (alone.ended_at or 0), abs=0.012)


def test_tenants_are_charged_while_their_answers_come_also_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = replace(ONE_HOST, policy="fair")
    simulation = Simulation(cluster, COSTS)
    long = replace(request(1, at=5.0, prompt=100, output=1000), tenant="a")
    charged: list[tuple[float, int]] = []
    charge = simulation.cluster.scheduler.charge

    def noted(each: SimulatedRequest, num_tokens: int) -> None:
        charged.append((simulation.loop.now, num_tokens))
        charge(each, num_tokens)

    monkeypatch.setattr(simulation.cluster.scheduler, "charge", noted)
    simulation.serve([replace(request(0), tenant="b"), long])
    of_long = [(at, number) for at, number in charged if at > 5]
    began_at = (long.first_at or 0) + 1e-9

    assert 30 < len(of_long) < 40
    for at, number in of_long[1:-1]:
        assert 1 + (at - began_at) / 0.0101 == pytest.approx(number, abs=1.01)
    assert 1000 == of_long[-1][1] == long.num_charged


def test_delays_are_found_again_from_requests_that_were_served_alone() -> None:
    hidden = replace(COSTS, delays=replace(DELAYS, answer_s=0.0, step_gap_s=0.002))
    live = served(
        *(request(number, at=float(number), output=4) for number in range(5)), costs=hidden
    )
    records = [
        LiveRecord(
            arrived_at=each.arrived_at,
            first_at=each.first_at or 0,
            ended_at=each.ended_at or 0,
            num_prompt_tokens=each.num_prompt_tokens,
            num_output_tokens=each.num_output_tokens,
            queue_s=0,
            prefill_s=0,
            hand_over_s=0,
        )
        for each in live
    ]
    again = [request(number, output=4) for number in range(5)]
    delays = calibrated(STEPS, records, again, ONE_HOST).delays

    assert 0.010 == pytest.approx(
        delays.admit_s + delays.dispatch_s + delays.lease_s + delays.hand_over_s
    )
    assert 0.002 == pytest.approx(delays.step_gap_s)


def test_without_delays_only_steps_take_time() -> None:
    steps = StepTimes(
        step_s=0.01,
        stream_row_s=0.0,
        stream_context_s=1e-6,
        prompt_step_s=0.02,
        prompt_row_s=0.0,
        prompt_pair_s=1e-6,
    )
    (alone,) = served(request(prompt=100), costs=Costs(steps=steps, delays=NO_DELAYS))

    assert 0.02 + 1e-6 * 100 * 50 == pytest.approx(alone.ttft_s)
    assert (2 * 0.01 + 1e-6 * (101 + 102)) / 2 == pytest.approx(alone.tpot_s)
