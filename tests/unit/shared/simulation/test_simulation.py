"""Many steps at once are what each step by itself is; nothing is lost, nothing is left."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.shared.measure.load.traces import Lengths
from slipstream.shared.messages.common import Route
from slipstream.shared.scheduling.queue import POLICIES, Policy
from slipstream.shared.simulation.cluster import ClusterSettings
from slipstream.shared.simulation.costs import Costs, Delays, StepTimes, fake_steps
from slipstream.shared.simulation.load import LengthRange, Mix, RequestMaker, poisson
from slipstream.shared.simulation.owner import WorkerRules
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.simulation.run import Outcome, Simulation
from slipstream.shared.simulation.scheduler import AdmissionRules

REAL = StepTimes(
    step_s=5e-3,
    stream_row_s=3e-4,
    stream_context_s=5e-7,
    prompt_step_s=6e-3,
    prompt_row_s=1.2e-4,
    prompt_pair_s=1e-7,
)
COSTS = {
    "fake": Costs(steps=fake_steps(4, 20, 50)),
    "real": Costs(steps=REAL),
    "shared cores": Costs(steps=REAL, decode_slowdown=0.7, prefill_slowdown=0.4),
    # No multiples of delays or of each other: what comes just at the end of a step may be in time.
    "constant": Costs(
        steps=replace(fake_steps(3.137, 0, 0), prompt_step_s=2.911e-3),
        delays=Delays(step_gap_s=0.0, lease_s=0.0),
    ),
}
MIX = Mix(
    lengths=LengthRange((1, 900), (1, 80)),
    classes={"interactive": 0.3, "standard": 0.5, "batch": 0.2},
    tenants={"a": 0.6, "b": 0.3, "c": 0.1},
)


def requests(
    seed: int, rate: float = 60, number: int = 120, route: Route = "auto"
) -> list[SimulatedRequest]:
    mix = Mix(lengths=MIX.lengths, classes=MIX.classes, tenants=MIX.tenants, route=route)
    return list(poisson(RequestMaker(mix, seed), rate, number, seed))


def times_of(served: Sequence[SimulatedRequest]) -> list[float]:
    """Return when each had its first and its last token: never, where it was refused."""
    assert all((each.refusal is None) == (each.ended_at is not None) for each in served)
    return [
        math.inf if time_s is None else time_s
        for each in served
        for time_s in (each.first_at, each.ended_at)
    ]


def serve(
    asked: Sequence[SimulatedRequest],
    costs: Costs,
    cluster: ClusterSettings,
    *,
    is_stepwise: bool = False,
) -> Outcome:
    return Simulation(cluster, costs, is_stepwise=is_stepwise).serve(asked)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    name=st.sampled_from(sorted(COSTS)),
    route=st.sampled_from(["auto", "local", "remote"]),
    num_hosts=st.integers(1, 2),
    rate=st.sampled_from([5.0, 60.0, 400.0]),
)
def test_many_steps_at_once_are_what_each_by_itself_is(
    seed: int, name: str, route: Route, num_hosts: int, rate: float
) -> None:
    cluster = ClusterSettings(num_prefill=2, num_decode=2, num_hosts=num_hosts)
    at_once, stepwise = (requests(seed, rate, 60, route) for _ in range(2))
    fast = serve(at_once, COSTS[name], cluster)
    slow = serve(stepwise, COSTS[name], cluster, is_stepwise=True)

    assert times_of(at_once) == pytest.approx(times_of(stepwise), rel=1e-9)
    assert fast.num_events < slow.num_events


@pytest.mark.parametrize("policy", POLICIES)
def test_each_request_ends_once_and_nothing_is_left(policy: Policy) -> None:
    """Seats and windows are free again: `check_integrity` looks at the end of each run."""
    cluster = ClusterSettings(
        policy=policy, max_num_waiting=40, workers=WorkerRules(num_decode_seats=4)
    )
    asked = requests(3, rate=200, number=400)
    ledger = serve(asked, COSTS["real"], cluster).ledger
    num_refused = sum(ledger.refusals.values())
    answered = [each for each in asked if each.refusal is None]

    assert (400, 400) == (ledger.num_asked, ledger.num_over)
    assert 0 < num_refused < 400
    assert ledger.all.num_requests == len(answered) == 400 - num_refused
    assert ledger.all.num_tokens == sum(each.num_output_tokens for each in answered)
    assert all(
        each.arrived_at <= (each.placed_at or 0) <= (each.first_at or 0) <= (each.ended_at or 0)
        for each in answered
    )


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    runs = [requests(seed) for seed in (7, 7, 8)]
    for each in runs:
        serve(each, COSTS["real"], ClusterSettings())
    first, second, third = (times_of(each) for each in runs)

    assert first == second
    assert first != third


def test_who_waits_longer_than_the_deadline_is_refused() -> None:
    cluster = ClusterSettings(
        max_num_waiting=10_000,
        admission=AdmissionRules(deadline_s=0.5, batch_deadline_s=0.5, is_door_open=True),
        workers=WorkerRules(num_decode_seats=1),
    )
    asked = requests(5, rate=400, number=200)
    ledger = serve(asked, COSTS["real"], cluster).ledger

    assert ledger.refusals["deadline_exceeded"] > 0
    assert {"deadline_exceeded"} == set(ledger.refusals)
    # Looked at whenever somebody may be placed, so a moment late.
    assert max(ledger.all.queue_s) < 0.51


def test_who_waits_longer_than_its_class_promises_is_refused_and_nobody_else() -> None:
    cluster = ClusterSettings(
        max_num_waiting=10_000,
        admission=AdmissionRules(is_door_open=True),
        workers=WorkerRules(num_decode_seats=1),
    )
    asked = requests(5, rate=400, number=200)
    ledger = serve(asked, COSTS["real"], cluster).ledger

    assert {"too_old"} == set(ledger.refusals)
    assert {"interactive"} == {each.latency_class for each in asked if each.refusal}
    assert max(ledger.by_class["interactive"].queue_s) <= 2.0
    assert max(ledger.by_class["batch"].queue_s) > 2.0
    # They came within half a second, and were in the queue for two.
    num_left_late = sum(number for second, number in ledger.left_queue.items() if second >= 2)
    num_placed_late = sum(each.placed_at is not None and each.placed_at >= 2 for each in asked)
    assert ledger.refusals["too_old"] + num_placed_late == num_left_late


def test_who_can_not_be_answered_by_its_deadline_is_not_let_in() -> None:
    """A prompt of 800 tokens takes 0.8 s at 1000 a second, one of 100 doesn't."""
    cluster = ClusterSettings(admission=AdmissionRules(deadline_s=0.5))
    maker = RequestMaker(MIX, 1)
    long, short = (maker.make(at, Lengths(prompt, 2)) for at, prompt in ((0.0, 800), (9.0, 100)))
    long.latency_class = short.latency_class = "standard"
    serve([long, short], COSTS["fake"], cluster)

    assert ("too_late", None) == (long.refusal, short.refusal)


class _Recorder(RequestMaker):
    """Keeps what it makes."""

    def __init__(self, mix: Mix, seed: int) -> None:
        super().__init__(mix, seed)
        self.made: list[SimulatedRequest] = []

    def make(self, arrived_at: float, lengths: Lengths | None = None) -> SimulatedRequest:
        self.made.append(super().make(arrived_at, lengths))
        return self.made[-1]


def test_so_many_clients_ask_again_after_each_answer_and_at_no_other_time() -> None:
    maker = _Recorder(MIX, 1)
    outcome = Simulation(ClusterSettings(), COSTS["real"]).serve_streams(maker, 6, 100)
    starts = [(each.arrived_at, 1) for each in maker.made]
    ends = [(each.ended_at or 0.0, -1) for each in maker.made]
    num_at_once = list(itertools.accumulate(step for _, step in sorted(starts + ends)))

    assert 100 == outcome.ledger.num_over
    assert 6 == max(num_at_once)
    assert starts[6:] != []
    assert all(at >= min(end for end, _ in ends) for at, _ in starts[6:])
