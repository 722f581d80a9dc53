"""A load that is simulated is served live as it is, by a scripted service on the in-memory bus."""

from dataclasses import replace

import pytest

from slipstream.services.cli.live_load import LoadFailedError, serve_live
from slipstream.shared.bus.memory_bus import MemoryBroker, MemoryBus
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import Failed
from slipstream.shared.simulation.requests import SimulatedRequest
from tests.unit.cli.test_serve_bench_client import Service

GAP_S = 0.01
FIRST = SimulatedRequest(
    request_id=RequestId("0"),
    arrived_at=0.0,
    num_prompt_tokens=3,
    num_output_tokens=4,
    max_tokens=4,
    tenant="a",
    latency_class="batch",
    route="remote",
)
LATER = replace(FIRST, arrived_at=0.1, tenant="", latency_class="standard", num_prompt_tokens=5)


async def test_requests_are_asked_as_they_are_simulated_and_at_their_times() -> None:
    broker = MemoryBroker()
    service = Service(MemoryBus(broker))
    service.gap_s = GAP_S
    await service.start()
    first, later = await serve_live(MemoryBus(broker), [FIRST, LATER], seed=1)
    asked = [
        (each.tenant, each.latency_class, each.route, each.max_tokens) for each in service.asked
    ]

    assert [("a", "batch", "remote", 4), (None, "standard", "remote", 4)] == asked
    assert [3, 5] == [len(each.prompt_token_ids or ()) for each in service.asked]
    assert 0.1 <= later.arrived_at - first.arrived_at + 0.001
    assert first.arrived_at + GAP_S <= first.first_at <= first.ended_at - 3 * GAP_S
    assert ("a", "batch", 4, 0.007) == (
        first.tenant,
        first.latency_class,
        first.num_output_tokens,
        first.queue_s,
    )


async def test_a_request_that_is_refused_ends_the_load_with_its_reason() -> None:
    broker = MemoryBroker()
    service = Service(MemoryBus(broker))
    service.failure = Failed(code="overloaded", message="too many wait")
    await service.start()

    with pytest.raises(LoadFailedError, match="overloaded: too many wait"):
        await serve_live(MemoryBus(broker), [FIRST, LATER], seed=1)
