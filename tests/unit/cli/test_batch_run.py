"""A batch over the durable entrance: answered once, bounded, patient, resumable."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.services.cli.batch_input import InputFile
from slipstream.services.cli.batch_output import OutputFile
from slipstream.services.cli.batch_run import BatchLimits, BatchRun, Summary
from slipstream.shared.bus.durable import BODY_DIGEST, DurableLimits, StorageError
from slipstream.shared.bus.memory_durable import MemoryDurable
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.common import Failed, Timings, Usage
from slipstream.shared.messages.generate import Choice, Completion
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.submission import identify


class Scheduler:
    """Answers what is submitted with its prompt, as often as it comes."""

    def __init__(self, durable: MemoryDurable) -> None:
        self.durable = durable
        self.prompts: list[str] = []
        self.most_waiting = 0
        self.may_answer: Callable[[str], bool] = lambda _prompt: True

    async def run(self) -> None:
        while True:
            message = await self.durable.queue.take(60)
            assert message is not None
            # Others come first: how many of them are submitted shows.
            for _ in range(20):
                await asyncio.sleep(0)
            self.most_waiting = max(self.most_waiting, 1 + len(self.durable.queue.waiting))
            prompt = json.loads(message.payload)["prompt"]
            await message.ack()
            if not self.may_answer(prompt):
                continue
            self.prompts.append(prompt)
            who = identify(message.payload, message.sequence)
            ending = Failed(code="overloaded", message="no") if prompt == "fail" else _echo(prompt)
            headers = {BODY_DIGEST: who.body_digest}
            await self.durable.results.create(who.key, encode(ending, "json"), headers)


def _echo(prompt: str) -> Completion:
    return Completion(
        request_id=RequestId("r"),
        attempt=1,
        choices=[Choice(text=prompt, token_ids=PackedInts([1]), finish_reason="stop")],
        usage=Usage(num_prompt_tokens=1, num_output_tokens=1),
        timings=Timings(),
    )


@pytest.fixture
def durable() -> MemoryDurable:
    return MemoryDurable()


@pytest.fixture
async def scheduler(durable: MemoryDurable) -> AsyncIterator[Scheduler]:
    made = Scheduler(durable)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()


class Files:
    """An input and its output."""

    def __init__(self, directory: Path, prompts: list[str]) -> None:
        self.path = directory / "out.jsonl"
        lines = [
            json.dumps(
                {
                    "custom_id": f"line-{number}",
                    "method": "POST",
                    "url": "/v1/completions",
                    "body": {"prompt": prompt},
                }
            )
            for number, prompt in enumerate(prompts)
        ]
        (directory / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
        self.source = InputFile(directory / "in.jsonl")

    async def run(self, durable: MemoryDurable, **limits: Any) -> Summary:
        limits = {"rest_s": 0.01, "wait_s": 5.0, **limits}
        with OutputFile(self.path, {each.name: each for each in self.source.lines}) as output:
            return await BatchRun(durable, self.source, output, BatchLimits(**limits)).run()

    @property
    def texts(self) -> dict[str, str]:
        rows = [json.loads(each) for each in self.path.read_text().splitlines()]
        assert len(rows) == len({row["custom_id"] for row in rows})
        return {
            row["custom_id"]: row["response"]["body"]["choices"][0]["text"]
            for row in rows
            if row["response"]["status_code"] == 200
        }


async def test_every_line_is_answered_under_its_name(
    durable: MemoryDurable, scheduler: Scheduler, tmp_path: Path
) -> None:
    files = Files(tmp_path, ["a", "b", "fail"])
    summary = await files.run(durable)

    assert Summary(num_lines=3, num_answered=2, num_failed=1) == summary
    assert {"line-0": "a", "line-1": "b"} == files.texts


async def test_no_more_are_submitted_than_allowed(
    durable: MemoryDurable, scheduler: Scheduler, tmp_path: Path
) -> None:
    files = Files(tmp_path, [str(number) for number in range(12)])
    summary = await files.run(durable, num_in_flight=3)

    assert (12, 3) == (summary.num_answered, scheduler.most_waiting)


async def test_a_second_run_asks_for_what_is_left_alone(
    durable: MemoryDurable, scheduler: Scheduler, tmp_path: Path
) -> None:
    files = Files(tmp_path, ["a", "b", "c"])
    scheduler.may_answer = lambda prompt: prompt == "b"
    first = await files.run(durable, wait_s=0.3)
    scheduler.may_answer = lambda _prompt: True
    second = await files.run(durable)

    assert (1, 2, 0) == (first.num_answered, first.num_unanswered, first.num_found)
    assert (3, 0, 1) == (second.num_answered, second.num_unanswered, second.num_found)
    assert ["a", "b", "c"] == sorted(scheduler.prompts)
    assert {"line-0": "a", "line-1": "b", "line-2": "c"} == files.texts


async def test_what_was_answered_before_a_crash_is_not_computed_again(
    durable: MemoryDurable, scheduler: Scheduler, tmp_path: Path
) -> None:
    files = Files(tmp_path, ["a", "b"])
    await files.run(durable)
    files.path.unlink()
    summary = await files.run(durable)

    assert (2, ["a", "b"]) == (summary.num_answered, sorted(scheduler.prompts))
    assert {"line-0": "a", "line-1": "b"} == files.texts


async def test_another_run_is_computed_anew(
    durable: MemoryDurable, scheduler: Scheduler, tmp_path: Path
) -> None:
    files = Files(tmp_path, ["a"])
    await files.run(durable)
    files.path.unlink()
    await files.run(durable, run="second")

    assert ["a", "a"] == scheduler.prompts


async def test_storage_that_comes_back_is_waited_for(
    durable: MemoryDurable, scheduler: Scheduler, tmp_path: Path
) -> None:
    files = Files(tmp_path, ["a", "b"])
    scheduler.may_answer = lambda prompt: prompt == "a"
    running = asyncio.create_task(files.run(durable, num_in_flight=1))
    while not scheduler.prompts:
        await asyncio.sleep(0)
    durable.results.is_broken = True
    await asyncio.sleep(0.1)
    durable.results.is_broken = False
    scheduler.may_answer = lambda _prompt: True

    assert 2 == (await running).num_answered


async def test_storage_that_was_never_there_is_an_error_at_once(
    durable: MemoryDurable, tmp_path: Path
) -> None:
    durable.queue.is_broken = True
    with pytest.raises(StorageError, match="broken by the test"):
        await asyncio.wait_for(Files(tmp_path, ["a"]).run(durable), 3)


async def test_a_request_above_the_limit_is_an_error_of_its_line(
    durable: MemoryDurable, scheduler: Scheduler, tmp_path: Path
) -> None:
    await durable.ensure(DurableLimits(max_message_bytes=500))
    files = Files(tmp_path, ["a", "b" * 600])
    summary = await files.run(durable)
    (failed,) = (
        row
        for row in map(json.loads, files.path.read_text().splitlines())
        if row["custom_id"] == "line-1"
    )

    assert (1, 1) == (summary.num_answered, summary.num_failed)
    assert 413 == failed["response"]["status_code"]
    assert "the limit of 500 bytes" in failed["response"]["body"]["error"]["message"]
