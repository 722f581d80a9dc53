"""Costs are found again from what a simulated stack showed its clients."""

from collections.abc import Callable
from functools import partial

import pytest

from slipstream.shared.simulation.cluster import ClusterSettings
from slipstream.shared.simulation.costs import Costs, Delays, StepTimes
from slipstream.shared.simulation.fit import FitError
from slipstream.shared.simulation.judgement import judge_by
from slipstream.shared.simulation.live_fit import NO_SLOWDOWN, SLOWDOWNS, Busy, Sharing, fit_live
from slipstream.shared.simulation.live_record import LiveRecord
from slipstream.shared.simulation.load import LengthRange, Mix, RequestMaker, poisson
from slipstream.shared.simulation.prompt_desk import PromptDesk
from slipstream.shared.simulation.refine import nearest
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.simulation.run import Simulation

pytestmark = pytest.mark.slow  # fits by simulation from several starts: seconds each

STEPS = StepTimes(
    step_s=9e-3,
    stream_row_s=6e-4,
    stream_context_s=1e-6,
    prompt_step_s=1e-2,
    prompt_row_s=1.5e-4,
)
HIDDEN = Costs(steps=STEPS, delays=Delays(step_gap_s=0.0), decode_slowdown=0.5)
# Steps of prompts are cut short by time: 150 rows of the 512 that are allowed.
SLOW_STEPS = StepTimes(
    step_s=4e-2,
    stream_row_s=4e-4,
    stream_context_s=0.0,
    prompt_step_s=4e-2,
    prompt_row_s=4e-4,
)
SLOW = Costs(steps=SLOW_STEPS, delays=Delays(step_gap_s=0.0))
MIX = Mix(lengths=LengthRange((100, 900), (20, 80)), route="remote")
CLUSTER = ClusterSettings()


def requests(seed: int, number: int = 120, rate: float = 4.0) -> list[SimulatedRequest]:
    return list(poisson(RequestMaker(MIX, seed), rate, number, seed))


class _Watched(Simulation):
    """Notes when each prompt got its blocks, as a live worker tells in its timings."""

    def __init__(self, hidden: Costs) -> None:
        super().__init__(CLUSTER, hidden)
        self.leased_at: dict[str, float] = {}
        for worker in self.cluster.prefill.values():
            desk = worker.prompts
            desk._is_leased = partial(self._leased, desk, desk._is_leased)

    def _leased(self, desk: PromptDesk, go_on: Callable[[], None]) -> None:
        self.leased_at[desk.ready[-1].request.request_id] = self.loop.now
        go_on()


def seen(served: list[SimulatedRequest], hidden: Costs = HIDDEN) -> list[LiveRecord]:
    """Return what clients of a simulated stack would have seen of it."""
    simulation = _Watched(hidden)
    simulation.serve(served)
    hand_over_s = hidden.delays.hand_over_s
    return [
        LiveRecord(
            arrived_at=each.arrived_at,
            first_at=each.first_at or 0.0,
            ended_at=each.ended_at or 0.0,
            num_prompt_tokens=each.num_prompt_tokens,
            num_output_tokens=each.num_output_tokens,
            queue_s=(each.placed_at or 0.0) - each.arrived_at,
            prefill_s=(each.first_at or 0.0) - hand_over_s - simulation.leased_at[each.request_id],
            hand_over_s=hand_over_s,
        )
        for each in served
    ]


@pytest.mark.timeout(120)  # costs are looked for by hundreds of simulations
@pytest.mark.parametrize(
    ("hidden", "rate", "slowdowns"), [(HIDDEN, 4.0, SLOWDOWNS), (SLOW, 1.6, NO_SLOWDOWN)]
)
def test_what_was_fitted_to_one_half_holds_for_the_other(
    hidden: Costs, rate: float, slowdowns: list[float]
) -> None:
    records = seen(requests(1, rate=rate), hidden)
    start = fit_live(records[:60], Sharing(), slowdowns)
    costs = nearest([start], records[:60], CLUSTER)
    errors = judge_by(records, requests(1, rate=rate), CLUSTER, costs, first_judged=60).errors

    assert all(abs(each) < 0.1 for each in errors.values()), (errors, costs)


def test_costs_are_near_those_that_made_the_times() -> None:
    costs = fit_live(seen(requests(2, 200)), Sharing())
    steps = costs.steps

    assert 0.5 == pytest.approx(costs.decode_slowdown, abs=0.15)
    assert 500 * 1.5e-4 + 1e-2 == pytest.approx(
        500 * steps.prompt_row_s + steps.prompt_step_s, rel=0.1
    )
    of_step = steps.step_s + 4 * steps.stream_row_s + 2000 * steps.stream_context_s
    assert 9e-3 + 4 * 6e-4 + 2e-3 == pytest.approx(of_step, rel=0.1)


def test_a_load_without_prefill_workers_tells_no_cost_of_prompts() -> None:
    record = LiveRecord(
        arrived_at=0,
        first_at=1,
        ended_at=2,
        num_prompt_tokens=9,
        num_output_tokens=9,
        queue_s=0,
        prefill_s=0,
        hand_over_s=0,
    )

    with pytest.raises(FitError, match="--route remote"):
        fit_live([record] * 20, Sharing())


def test_busy_time_is_counted_once_however_intervals_overlap() -> None:
    busy = Busy([(0, 2), (1, 3), (5, 6)])

    assert 0.5 == busy.part_of((2, 4))
    assert 4 / 6 == pytest.approx(busy.part_of((0, 6)))
    assert 0.0 == busy.part_of((3.5, 4.5))
