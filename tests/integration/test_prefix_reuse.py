"""What workers find of earlier sequences, seen from inside; the fake engine checks every slot."""

import asyncio
from typing import Any

import pytest

from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.worker.leased_blocks import LeasedBlocks
from slipstream.shared.worker.leasing import Leasing

from .service_stack import oracle, until
from .worker_pair import PROMPT, Hosted

pytestmark = pytest.mark.nats

_LONG = SamplingParameters(seed=1, temperature=0.0, max_tokens=100, ignore_eos=True)


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, LeasedBlocks]]:
    """Every lease of the decode worker, with the number of tokens it was asked for."""
    found: list[tuple[int, LeasedBlocks]] = []
    original = Leasing.lease

    async def spy(*arguments: Any, **options: Any) -> LeasedBlocks:
        leased = await original(*arguments, **options)
        found.append((len(arguments[-1]), leased))
        return leased

    monkeypatch.setattr(Leasing, "lease", spy)
    return found


@pytest.mark.parametrize(
    "settings",
    [{"kv": {"num_blocks": 9}, "decode": {"num_granted_blocks": 2, "speculation": "off"}}],
)
async def test_a_preempted_sequence_finds_what_it_computed_before(
    hosted: Hosted, leases: list[tuple[int, LeasedBlocks]]
) -> None:
    """Two that need six blocks each of nine: one gives way, with generated tokens among its own."""
    prompts = [[number, *PROMPT[:63]] for number in range(2)]
    for prompt in prompts:
        await hosted.send(hosted.decode_job(prompt_token_ids=PackedInts(prompt), sampling=_LONG))
    await until(lambda: len(hosted.answers) == 2)

    assert sum(each.usage.num_preemptions for each in hosted.answers) >= 1
    again = [(num, leased) for num, leased in leases if num > 64]
    assert again, "nothing was leased anew"
    assert all(0 < leased.num_cached_tokens < num for num, leased in again)
    assert [0, 0] == [each.usage.num_cached_tokens for each in hosted.answers]
    said = [list(each.choices[0].token_ids) for each in hosted.answers]
    assert sorted(_said(prompt) for prompt in prompts) == sorted(said)
    await hosted.until_free()


def _said(prompt: list[int]) -> list[int]:
    said: list[int] = []
    while len(said) < 100:
        said += oracle([*prompt, *said], 100 - len(said))
    return said


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_only_what_is_not_cached_is_computed(hosted: Hosted, role: str) -> None:
    """Of 144 tokens the first 128 are found by whichever worker comes second."""
    host = hosted.prefill._parts.host if role == "prefill" else hosted.decode._parts.host
    first, second = hosted.decode_job, hosted.prefill_job
    if role == "decode":
        first, second = second, first
    await hosted.send(first())
    await until(lambda: hosted.answers)
    await hosted.until_free()
    rows: list[int] = []
    forward = host.engine.runner.forward

    def count(batch: Any) -> Any:
        rows.append(batch[0].num_rows)
        return forward(batch)

    host.engine.runner.forward = count
    await hosted.send(second())
    await until(lambda: len(hosted.answers) == 2)

    assert 16 == rows[0]
    assert [0, 128] == [each.usage.num_cached_tokens for each in hosted.answers]
    assert 1 == len({tuple(each.choices[0].token_ids) for each in hosted.answers})
    await hosted.until_free()


@pytest.mark.parametrize("settings", [{"kv": {"num_blocks": 40}}])
async def test_many_at_once_share_what_one_of_them_committed(hosted: Hosted) -> None:
    """Forty blocks can't hold eight prompts of five blocks and their answers side by side."""
    await hosted.send(hosted.decode_job())
    await until(lambda: hosted.answers)
    jobs = [hosted.prefill_job() if number % 2 else hosted.decode_job() for number in range(16)]
    await asyncio.gather(*(hosted.send(job) for job in jobs))
    await until(lambda: len(hosted.answers) == 17)

    assert {128} == {each.usage.num_cached_tokens for each in hosted.answers[1:]}
    assert 1 == len({tuple(each.choices[0].token_ids) for each in hosted.answers})
    await hosted.until_free()
