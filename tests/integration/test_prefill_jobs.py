"""What becomes of a prefill job: taken once, computed in leased blocks, handed over or released."""

from typing import Any

import pytest

from slipstream.services.prefill import jobs as prefill_jobs
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.ids import WorkerId, new_request_id
from slipstream.shared.messages.common import Accepted, Rejected
from slipstream.shared.messages.generate import Completion
from slipstream.shared.messages.packed import PackedInts

from .service_stack import until
from .worker_pair import PROMPT, Hosted

pytestmark = pytest.mark.nats

slow_prefill = pytest.mark.parametrize(
    "settings", [{"prefill": {"token_budget": 8, "fake": FakeEngineConfig(step_ms=10)}}]
)


async def test_a_repeat_of_a_finished_prefill_job_is_accepted_and_not_done_again(
    hosted: Hosted,
) -> None:
    job = hosted.prefill_job()
    assert isinstance(await hosted.send(job), Accepted)
    await until(lambda: hosted.answers)
    await hosted.until_free()
    num_forwards = hosted.prefill._parts.host.engine.runner.num_forwards

    assert isinstance(await hosted.send(job), Accepted)
    assert (0, num_forwards) == (
        hosted.prefill._parts.jobs.num_running,
        hosted.prefill._parts.host.engine.runner.num_forwards,
    )
    assert hosted.ending("prefill", job.request_id).code is None
    await hosted.until_free()
    assert 1 == len(hosted.answers)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_jobs_that_cannot_be_taken_are_rejected_with_nothing_held(
    hosted: Hosted, role: str
) -> None:
    make = hosted.prefill_job if role == "prefill" else hosted.decode_job
    jobs = hosted.prefill._parts.jobs if role == "prefill" else hosted.decode._parts.jobs
    cancelled = new_request_id()
    await hosted.cancel(role, cancelled)
    answers = [await hosted.send(make(model="other")), await hosted.send(make(cancelled))]
    jobs._num_seats = 0
    answers.append(await hosted.send(make()))
    jobs.is_draining = True
    answers.append(await hosted.send(make()))

    assert ["wrong_model", "cancelled", "no_seat", "draining"] == [
        answer.reason for answer in answers if isinstance(answer, Rejected)
    ]
    assert (0, 0) == (len(jobs._tasks), jobs._book.num_held)


async def test_a_sequence_that_its_decode_worker_rejects_is_released(hosted: Hosted) -> None:
    hosted.decode._parts.jobs._num_seats = 0
    job = hosted.prefill_job()
    await hosted.send(job)
    ended = await hosted.until_ended("prefill", job.request_id)

    assert ("decode_no_seat", False) == (ended.code, ended.was_answered)
    await hosted.until_free()


async def test_a_decode_worker_that_is_gone_costs_no_block(hosted: Hosted) -> None:
    job = hosted.prefill_job(decode_worker_id=WorkerId("nobody"))
    await hosted.send(job)

    assert "no_responders" == (await hosted.until_ended("prefill", job.request_id)).code
    await hosted.until_free()


@slow_prefill
async def test_whole_blocks_are_committed_while_the_prompt_is_computed(hosted: Hosted) -> None:
    """
    Of 144 tokens four blocks are whole; the fifth, half filled, keeps its one writer.

    Blocks are handed out as they are needed, two steps ahead.
    """
    seen: set[tuple[int, int]] = set()
    job = hosted.prefill_job()
    await hosted.send(job)
    while hosted.ending("prefill", job.request_id) is None:
        for each in (await hosted.stack.audit()).leases:
            assert each.num_blocks <= 5
            seen.add((each.num_committed_blocks, each.num_blocks))

    committed = {num_committed for num_committed, _ in seen}
    assert {1, 2, 3} <= committed
    assert max(committed) == 4
    assert (1, 5) == (min(number for _, number in seen), max(number for _, number in seen))
    assert all(number <= num_committed + 2 for num_committed, number in seen)


@slow_prefill
async def test_a_cancelled_prefill_stops_at_the_next_chunk(hosted: Hosted) -> None:
    job = hosted.prefill_job()
    await hosted.send(job)
    await until(lambda: hosted.prefill._parts.host.engine.runner.num_forwards > 1)
    await hosted.cancel("prefill", job.request_id)

    assert "cancelled" == (await hosted.until_ended("prefill", job.request_id)).code
    assert hosted.prefill._parts.host.engine.runner.num_forwards < 10
    assert hosted.ending("decode", job.request_id) is None
    await hosted.until_free()


@slow_prefill
async def test_a_prefill_over_its_deadline_ends(hosted: Hosted) -> None:
    job = hosted.prefill_job(deadline_ms=50)
    await hosted.send(job)

    assert "deadline_exceeded" == (await hosted.until_ended("prefill", job.request_id)).code
    await hosted.until_free()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_forward_that_fails_ends_its_sequences_and_not_the_worker(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    def explode(_batch: Any) -> Any:
        raise RuntimeError("boom")

    host = hosted.prefill._parts.host if role == "prefill" else hosted.decode._parts.host
    make = hosted.prefill_job if role == "prefill" else hosted.decode_job
    job = make()
    with monkeypatch.context() as patch:
        patch.setattr(host.engine, "forward", explode)
        await hosted.send(job)
        assert "internal_error" == (await hosted.until_ended(role, job.request_id)).code
    await hosted.until_free()
    await hosted.send(make())
    await until(lambda: hosted.answers)

    assert isinstance(hosted.answers[0], Completion)


@slow_prefill
async def test_a_stale_block_ends_its_own_sequence_alone(hosted: Hosted) -> None:
    # Not the same prompt: that one would wait for the other.
    others = PackedInts([9, *PROMPT[1:]])
    stale, sound = hosted.prefill_job(), hosted.prefill_job(prompt_token_ids=others)
    hosted.prefill._parts.host.gate._max_num_tokens = 1_000  # both in one step
    await hosted.send(stale)
    await hosted.send(sound)
    sequences = hosted.prefill._parts.jobs._sequences
    await until(lambda: all(each.num_computed_tokens for each in sequences.values()))
    await until(lambda: len(sequences) == 2)
    victim = sequences[stale.request_id, 1].leased.block_ids[0]
    generations = hosted.stack.one("kv").host.arena.generations
    generations[victim] += 1

    assert "internal_error" == (await hosted.until_ended("prefill", stale.request_id)).code
    await until(lambda: hosted.answers)
    assert sound.request_id == hosted.answers[0].request_id
    await hosted.until_free()


@pytest.mark.parametrize("settings", [{"kv": {"lease_ms": 300}}])
async def test_a_sequence_that_was_taken_and_never_adopted_comes_back(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the decode worker dies right after its answer."""

    async def accept(_bus: Any, _tracer: Any, job: Any, _decode: Any, _deadline: Any) -> Accepted:
        return Accepted(request_id=job.request_id, attempt=job.attempt)

    monkeypatch.setattr(prefill_jobs, "hand_over", accept)
    await hosted.send(hosted.prefill_job())
    await until(lambda: hosted.prefill._parts.host.keeper._held)

    await hosted.until_free()
    assert not hosted.prefill._parts.host.keeper._held
