"""Prompts enter a simulated worker as they do a live one."""

from functools import partial

from slipstream.shared.ids import RequestId
from slipstream.shared.simulation.events import EventLoop
from slipstream.shared.simulation.prompt_desk import PromptDesk
from slipstream.shared.simulation.requests import SimulatedRequest
from slipstream.shared.worker.chunks import PromptBudget
from slipstream.shared.worker.prompt_gate import AGED_S

_ROWS = 512


def prompt(name: str, at: float, job_priority: int) -> SimulatedRequest:
    return SimulatedRequest(
        request_id=RequestId(name),
        arrived_at=at,
        num_prompt_tokens=_ROWS,
        num_output_tokens=1,
        max_tokens=1,
        job_priority=job_priority,
    )


def test_who_has_waited_long_at_the_gate_goes_before_more_important_prompts() -> None:
    """Each second another important prompt comes, before the one inside is computed."""
    loop, computed_at = EventLoop(), dict[str, float]()
    desk = PromptDesk(loop, _ROWS, 0.0, lambda: None)

    def step() -> None:
        chunks = desk.plan(desk.ready, PromptBudget(_ROWS))
        for request in desk.computed(chunks):
            computed_at[request.request_id] = loop.now

    for second in range(round(2 * AGED_S)):
        important = prompt(f"important {second}", float(second), 1000)
        loop.at(float(second), partial(desk.add, important))
        loop.at(second + 1.5, step)
    loop.at(0.5, partial(desk.add, prompt("other", 0.5, 0)))
    loop.run()

    assert AGED_S <= computed_at["other"] - 0.5 <= AGED_S + 3
