"""What becomes of a decode job: one ending, told by one, and every block back."""

import asyncio
from typing import Any

import pytest

from slipstream.services.decode import publisher as publisher_module
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.errors import DisconnectedError
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import REPLACED
from slipstream.shared.messages.jobs import ReplyTarget
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import SamplingParameters, SpeculationMode
from slipstream.shared.model.fake_runner import next_token_id

from .service_stack import until
from .worker_pair import PROMPT, Hosted

pytestmark = pytest.mark.nats

slow_decode = pytest.mark.parametrize(
    "settings", [{"decode": {"fake": FakeEngineConfig(step_ms=20), "speculation": "off"}}]
)


@slow_decode
async def test_a_cancel_for_another_attempt_leaves_the_client_alone(hosted: Hosted) -> None:
    """The scheduler goes on with the request: two endings would be one too many."""
    job = hosted.decode_job(sampling=SamplingParameters(seed=1, max_tokens=500, ignore_eos=True))
    await hosted.send(job)
    await until(lambda: hosted.decode._parts.jobs._book.num_emitted((job.request_id, 1)))
    answer = await hosted.cancel("decode", job.request_id, REPLACED)
    ended = await hosted.until_ended("decode", job.request_id)

    assert (False, False, "replaced") == (answer.was_ended_here, ended.was_answered, ended.code)
    await hosted.until_free()
    again = await hosted.cancel("decode", job.request_id, REPLACED)
    assert ("ended", False) == (again.phase, again.was_ended_here)
    assert [] == hosted.answers


@slow_decode
async def test_a_client_s_cancel_is_answered_here_and_remembered(hosted: Hosted) -> None:
    job = hosted.decode_job(sampling=SamplingParameters(seed=1, max_tokens=500, ignore_eos=True))
    await hosted.send(job)
    await until(lambda: hosted.decode._parts.jobs._book.num_emitted((job.request_id, 1)))
    assert (await hosted.cancel("decode", job.request_id)).was_ended_here
    await until(lambda: hosted.answers)
    await hosted.until_free()

    assert "abort" == hosted.answers[0].choices[0].finish_reason
    again = await hosted.cancel("decode", job.request_id, REPLACED)
    assert ("ended", True) == (again.phase, again.was_ended_here)


async def test_an_answer_that_cannot_be_sent_keeps_no_block(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise DisconnectedError("x")

    monkeypatch.setattr(publisher_module.StreamPublisher, "_send", fail)
    job = hosted.decode_job()
    await hosted.send(job)
    ended = await hosted.until_ended("decode", job.request_id)

    assert ("answer_not_sent", False) == (ended.code, ended.was_answered)
    await hosted.until_free()
    parts = hosted.decode._parts
    assert (0, 0, 0) == (
        parts.jobs._book.num_held,
        len(parts.publisher._running),
        len(parts.host.keeper._held),
    )


@slow_decode
@pytest.mark.parametrize("is_in_a_step", [True, False])
@pytest.mark.parametrize(
    ("is_streamed", "mode", "is_answered"),
    [(True, "rejection", True), (True, "exact", False), (False, "rejection", False)],
)
async def test_a_lost_lease_ends_its_sequence(
    hosted: Hosted,
    is_in_a_step: bool,
    is_streamed: bool,
    mode: SpeculationMode,
    is_answered: bool,
) -> None:
    """A stream that was seen ends here where another attempt would not say the same."""
    job = hosted.decode_job(
        sampling=SamplingParameters(seed=1, max_tokens=500, ignore_eos=True, speculation_mode=mode),
        reply=ReplyTarget(hosted.inbox, is_streamed=is_streamed),
    )
    await hosted.send(job)
    jobs = hosted.decode._parts.jobs
    await until(lambda: jobs._book.num_emitted((job.request_id, 1)))
    book = hosted.stack.one("kv").host.book
    (lease,) = book.table.leases.values()
    lease.expires_at = 0
    book.sweep(1)
    if not is_in_a_step:
        await asyncio.sleep(0.025)
    await hosted.decode._parts.host.keeper.renew()
    ended = await hosted.until_ended("decode", job.request_id)
    await hosted.until_free()
    await hosted.bus.flush()

    assert ("lease_lost", is_answered) == (ended.code, ended.was_answered)
    codes = [each.code for each in hosted.answers if isinstance(each, Failed)]
    assert (["lease_lost"] if is_answered else []) == codes


@pytest.mark.parametrize("settings", [{"kv": {"lease_ms": 300}}])
async def test_leases_are_renewed_as_long_as_it_takes(hosted: Hosted) -> None:
    hosted.decode._parts.host.engine.runner._costs = FakeEngineCosts(0.02)
    job = hosted.decode_job(
        sampling=SamplingParameters(seed=1, temperature=0.0, max_tokens=60, ignore_eos=True)
    )
    await hosted.send(job)
    await until(lambda: hosted.answers)

    assert 60 == len(hosted.answers[0].choices[0].token_ids)
    await hosted.until_free()


class FakeEngineCosts:
    """Every step takes as long."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def seconds(self, _num_rows: int, _num_context_tokens: int) -> float:
        """Return the duration of a step."""
        return self._step_s


async def test_what_earlier_attempts_said_is_not_computed_twice_as_output(hosted: Hosted) -> None:
    """A job that brings all of its output needs only its ending."""
    said = list(PROMPT)
    for _ in range(8):
        said.append(next_token_id(said))
    output = PackedInts(said[len(PROMPT) :])
    await hosted.send(hosted.prefill_job(output_token_ids=output))
    await hosted.send(hosted.decode_job(output_token_ids=output))
    await until(lambda: len(hosted.answers) == 2)

    for answer in hosted.answers:
        assert (list(output), "length") == (
            list(answer.choices[0].token_ids),
            answer.choices[0].finish_reason,
        )
    await hosted.until_free()


@slow_decode
async def test_a_drain_ends_what_does_not_end_by_itself(hosted: Hosted) -> None:
    job = hosted.decode_job(sampling=SamplingParameters(seed=1, max_tokens=5000, ignore_eos=True))
    await hosted.send(job)
    await until(lambda: hosted.decode._parts.jobs._book.num_emitted((job.request_id, 1)))
    await hosted.decode._parts.jobs.drain(0.05)
    await until(lambda: hosted.answers)

    assert "worker_draining" == hosted.answers[0].code
    await hosted.until_free()
