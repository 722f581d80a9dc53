"""The simulator says what a live stack does, on an engine whose step times are known."""

from collections.abc import Callable

import pytest

from slipstream.services.cli.connection import operator_access
from slipstream.services.cli.live_load import serve_live
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.simulation.cluster import ClusterSettings
from slipstream.shared.simulation.costs import fake_steps
from slipstream.shared.simulation.judgement import Judgement, judge_by
from slipstream.shared.simulation.load import LengthRange, Mix, RequestMaker, poisson
from slipstream.shared.simulation.owner import WorkerRules
from slipstream.shared.simulation.requests import SimulatedRequest

from . import stack
from .calibration import calibrated

pytestmark = [pytest.mark.nats, pytest.mark.slow, pytest.mark.timeout(300)]

# So large that neither messages nor a machine with other work to do count for much.
_STEP_MS, _ROW_US, _CONTEXT_TOKEN_NS = 80.0, 700.0, 5000.0
_STEPS = fake_steps(_STEP_MS, _ROW_US, _CONTEXT_TOKEN_NS)
_PROMPT_STEP_S = 2.0  # above any of them: how steps are cut is not learned in a few seconds
_TOKEN_BUDGET = 256
_CLUSTER = ClusterSettings(
    workers=WorkerRules(prompt_step_s=_PROMPT_STEP_S, token_budget=_TOKEN_BUDGET)
)
_MIX = Mix(lengths=LengthRange((100, 400), (4, 20)), route="remote")
_SHORT = Mix(lengths=LengthRange((100, 300), (4, 5)), route="remote")
_NUM_ALONE, _ALONE_EVERY_S = 7, 1.2
_NUM_REQUESTS, _RATE = 70, 1.9
_MAX_ERROR = 0.05

StartStack = Callable[..., stack.Stack]


def alone() -> list[SimulatedRequest]:
    maker = RequestMaker(_SHORT, seed=1)
    return [maker.make(_ALONE_EVERY_S * number) for number in range(_NUM_ALONE)]


def loaded(seed: int) -> list[SimulatedRequest]:
    return list(poisson(RequestMaker(_MIX, seed), _RATE, _NUM_REQUESTS, seed))


async def test_a_simulation_is_within_a_twentieth_of_what_is_served_live(
    start_stack: StartStack,
) -> None:
    """
    Time to first token, half and nineteen in twenty, and throughput, of the very same requests.

    What messages take is measured first, on requests alone; how long steps last is known. A
    millisecond decides who is in a step, and so now and then about a few hundred: of more
    requests, where one run doesn't do.
    """
    started = start_stack(
        ["--engine", "fake", "--test-mode", "--draft", "0", "--no-prefix-cache"],
        {
            "SLIPSTREAM_FAKE_STEP_MS": str(_STEP_MS),
            "SLIPSTREAM_FAKE_ROW_US": str(_ROW_US),
            "SLIPSTREAM_FAKE_CONTEXT_TOKEN_NS": str(_CONTEXT_TOKEN_NS),
            "SLIPSTREAM_TOKEN_BUDGET": str(_TOKEN_BUDGET),
            "SLIPSTREAM_PROMPT_STEP_MS": str(1000 * _PROMPT_STEP_S),
        },
    )
    bus = await NatsBus.connect(
        started.nats_url, "test-simulation", operator_access(started.nats_url)
    )
    found = Judgement((), ())
    try:
        records = await serve_live(bus, alone(), seed=0)
        costs = calibrated(_STEPS, records, alone(), _CLUSTER)
        for seed in (11, 12, 13):
            records = await serve_live(bus, loaded(seed), seed)
            found += judge_by(records, loaded(seed), _CLUSTER, costs)
            if max(map(abs, found.errors.values())) < _MAX_ERROR:
                break
    finally:
        await bus.close()

    # The load is one in which requests wait for each other.
    assert found.live.ttft_p95_s > 1.5 * found.live.ttft_p50_s
    assert max(map(abs, found.errors.values())) < _MAX_ERROR, (found.errors, costs.delays)
