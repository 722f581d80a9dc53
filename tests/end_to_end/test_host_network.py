"""
Two hosts with a network between them: what travels arrives, and what doesn't leaves nothing behind.

The far host computes prompts, the near one decodes. The fake engine checks every slot that it reads
against its prefix, so a wrong or stale block can't go unnoticed.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
from host_network import HostNetwork, host_network, why_not

from slipstream.services.cli.bench_hosts import HostPlan, Hosts
from slipstream.shared.bus.endpoint import call_kv
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.client import answers
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.ids import HostId
from slipstream.shared.messages.codec import decoder_of
from slipstream.shared.messages.generate import GenerateRequest
from slipstream.shared.messages.kv import Audit, Audited
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import WorkerRecord
from tests.integration.service_stack import oracle

_WHY_NOT = why_not()
pytestmark = [
    pytest.mark.nats,
    pytest.mark.timeout(180),
    pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT)),
]
_NUM_OUTPUT_TOKENS = 24
_SETTLE_S = 40.0
_LEASE_MS = 2000


@dataclass
class Network:
    """The two hosts, as their client sees them."""

    hosts: Hosts
    link: HostNetwork
    bus: NatsBus
    rng: random.Random

    async def ask(self, num_tokens: int, deadline_ms: int = 30_000) -> answers.Answer:
        """Ask for what the far host has to compute; the answer's tokens must be right."""
        prompt = [self.rng.randrange(3, 250) for _ in range(num_tokens)]
        request = GenerateRequest(
            prompt_token_ids=PackedInts(prompt),
            temperature=0,
            ignore_eos=True,
            max_tokens=_NUM_OUTPUT_TOKENS,
            route="remote",
            deadline_ms=deadline_ms,
        )
        answer = await answers.complete(self.bus, request, timeout_s=60)
        assert oracle(prompt, _NUM_OUTPUT_TOKENS, ignore_eos=True) == answer.token_ids
        return answer

    async def audits(self) -> list[Audited]:
        """Return the books of all hosts."""
        records = await self.bus.registry().entries()
        found = []
        for payload in records.values():
            record = decoder_of(WorkerRecord).decode(payload)
            if record.role == "kv":
                host_id = HostId(str(record.host_id))
                found.append(await call_kv(self.bus, host_id, Audit(), timeout_s=5))
        return found

    async def until_idle(self) -> None:
        """Return when nobody holds a block on either host."""
        async with asyncio.timeout(_SETTLE_S):
            while True:
                try:
                    audits = await self.audits()
                except SlipstreamError:
                    audits = []  # a host that isn't back yet
                if len(audits) == 2 and all(
                    each.num_free + each.num_cached == each.num_blocks for each in audits
                ):
                    break
                await asyncio.sleep(0.1)
        assert [[], []] == [each.problems for each in audits]


@pytest.fixture(scope="module")
def link() -> Iterator[HostNetwork]:
    with host_network() as made:
        yield made


@pytest.fixture(scope="module")
def hosts(link: HostNetwork, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    plans = [
        HostPlan(
            name="near",
            roles=("kv", "scheduler", "decode"),
            enter=link.near.enter,
            transfer_listen=f"{link.near.address}:0",
        ),
        HostPlan(
            name="far",
            roles=("kv", "prefill"),
            enter=link.far.enter,
            transfer_listen=f"{link.far.address}:0",
        ),
    ]
    directory = tmp_path_factory.mktemp("hosts")
    variables = {
        "MODEL": "fake",
        "ENGINE": "fake",
        "TEST_MODE": 1,
        "CACHE_DIR": directory / "cache",
        "KV_BLOCKS": 256,
        "LEASE_MS": _LEASE_MS,
        "TOKEN_BUDGET": 128,
        "FAKE_STEP_MS": 5,
    }
    with Hosts(directory, plans, variables, link.near.address) as running:
        yield running


@pytest.fixture
async def network(hosts: Hosts, link: HostNetwork) -> AsyncIterator[Network]:
    bus = await NatsBus.connect(f"nats://{link.outside_address}:{hosts.port}", "test")
    yield Network(hosts, link, bus, random.Random(1))
    await bus.close()


async def test_a_prompt_is_computed_on_one_host_and_decoded_on_the_other(network: Network) -> None:
    answers = await asyncio.gather(*(network.ask(1000) for _ in range(4)))

    assert {"remote"} == {each.route for each in answers}
    assert all(each.timings.hand_over_ms > 0 for each in answers)
    await network.until_idle()


@pytest.mark.slow
@pytest.mark.parametrize("num_cuts", [8])
async def test_a_link_that_is_cut_and_mended_costs_time_or_a_clear_error(
    network: Network, num_cuts: int
) -> None:
    """At random moments of a transfer; never a wrong token, never a block."""
    for number in range(num_cuts):
        asking = [
            asyncio.create_task(network.ask(2000, deadline_ms=8000)) for _ in range(number % 3 + 1)
        ]
        await asyncio.sleep(network.rng.uniform(0.02, 0.2))
        network.link.cut()
        await asyncio.sleep(network.rng.uniform(0.5, 3.0))
        network.link.mend()
        answers = await asyncio.gather(*asking, return_exceptions=True)
        for answer in answers:
            assert isinstance(answer, answers.Answer | SlipstreamError), answer
    await network.until_idle()

    await network.ask(500)
    await network.until_idle()
