"""
Requests among workers that say anything, in any order, late, twice, and in others' names.

Whatever is said: each request has at most one ending from the scheduler, exactly one where no
worker claims to have given it, and nothing of it is left.
"""

import asyncio
import os
import random
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs

from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import Failed, Rejected
from slipstream.shared.messages.generate import Cancel, Cancelled
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import EndedSequence, HeldSequence

from .scheduler_office import Office
from .scheduler_samples import Worker, ended, held, make_record, make_report, until

NUM_RUNS = int(os.environ.get("SLIPSTREAM_FUZZ_EXAMPLES", "25"))
NUM_STEPS = 60
CODES = ["lost", "kv_lost", "internal_error", "cancelled", "no_responders", "worker_no_seat", None]
ODD_NUMBERS = [0, -1, 1, 2**31, 2**63]


class Interleaving:
    """One office, and what is done to it by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.office = Office(max_num_attempts=3)
        self.workers: list[Worker] = []
        self.requests: list[str] = []
        self.claimed: set[str] = set()  # by a worker, to have been answered

    async def run(self) -> None:
        await self.office.open()
        try:
            for worker_id, role in (("d1", "decode"), ("d2", "decode"), ("p1", "prefill")):
                self.workers.append(await self.office.worker(worker_id, role))
            for _ in range(NUM_STEPS):
                await self.step()
            await self.end_all()
        finally:
            await self.office.close()

    async def step(self) -> None:
        way: Any = self.random.choice(  # Any: methods of this class
            [self.open, self.report, self.report, self.report, self.cancel, self.change, self.rest]
        )
        await way()

    async def open(self) -> None:
        request = f"r{len(self.requests)}"
        self.requests.append(request)
        route = self.random.choice(["remote", "local", "auto"])
        self.office.desk.open(make_record(request, route=route))

    async def rest(self) -> None:
        await asyncio.sleep(self.random.choice([0, 0, 0.001]))

    async def cancel(self) -> None:
        request = RequestId(self.random.choice([*self.requests, "unknown"]))
        self.office.desk.run(self.cancel_one(request))

    async def cancel_one(self, request: RequestId) -> None:
        await self.office.desk.cancel(Cancel(request_id=request))

    async def change(self) -> None:
        """A worker begins, or ends, to refuse, to be silent, or to say that it answered before."""
        worker = self.random.choice(self.workers)
        worker.is_silent = self.random.random() < 0.15
        reason: Any = self.random.choice(["no_seat", "draining", "invalid", "cancelled"])
        rejected = Rejected(RequestId("r"), 1, reason)
        worker.answer_job = self.random.choice([None, None, rejected])
        worker.answer_cancel = self.random.choice(
            [None, None, Cancelled(request_id=RequestId("r"), phase="unknown")]
        )

    async def report(self) -> None:
        """Known workers and unknown ones, in order or not, with what they hold and what not."""
        worker_id, role = self.random.choice(
            [("d1", "decode"), ("d2", "decode"), ("p1", "prefill"), ("x", "decode"), ("d1", "kv")]
        )
        number = self.random.choice([*range(1, 200), *ODD_NUMBERS])
        report = make_report(
            worker_id,
            role,  # type: ignore[arg-type] # one of the roles above
            number=number,
            epoch=self.random.choice([1, 1, 1, 2, 0, -1]),
            held=[self.held() for _ in range(self.random.randrange(4))],
            ended=[self.ended() for _ in range(self.random.randrange(3))],
            num_free_seats=self.random.choice([0, 1, 4, -1, 2**31]),
        )
        await self.office.watch.report(report)

    def which(self) -> tuple[str, int]:
        return self.random.choice([*self.requests, "unknown"]), self.random.choice(
            [1, 1, 2, 3, 0, -1]
        )

    def held(self) -> HeldSequence:
        request, attempt = self.which()
        phase: Any = self.random.choice(["prefilling", "handing_over", "decoding", "ended"])
        token_ids = PackedInts(range(self.random.randrange(4)))
        next_index = self.random.choice([len(token_ids), 3, 0, *ODD_NUMBERS])
        return held(request, attempt, phase, next_index=next_index, token_ids=token_ids)

    def ended(self) -> EndedSequence:
        request, attempt = self.which()
        if self.random.random() < 0.2:
            self.claimed.add(request)
            return ended(request, attempt, was_answered=True, finish_reason="stop")
        return ended(request, attempt, code=self.random.choice(CODES))

    async def end_all(self) -> None:
        """Whoever is left is cancelled, by workers that do as they should."""
        for worker in self.workers:
            worker.is_silent, worker.answer_job, worker.answer_cancel = False, None, None
        for request in list(self.office.desk.records):
            self.office.desk.run(self.cancel_one(request))
        async with asyncio.timeout(20):
            while self.office.desk.records:
                await self.let_go()
                await asyncio.sleep(0.005)
        await until(lambda: not self.office.desk._errands._tasks, 20)

    async def let_go(self) -> None:
        """Each worker says that its cancelled attempts are over; its process begins anew."""
        for record in list(self.office.desk.records.values()):
            if record.placement is not None and not record.is_leaving:
                over = ended(record.request_id, record.attempt, code="cancelled")
                await self.office.desk.ended(over, record.placement.decode_worker_id)

    def check(self) -> None:
        self.office.assert_empty()
        failed = Counter(
            each.request_id for each in self.office.answers if isinstance(each, Failed)
        )

        assert {} == {each: count for each, count in failed.items() if count > 1}
        assert set(self.requests) - self.claimed <= failed.keys()


@pytest.mark.timeout(600 if NUM_RUNS > 100 else 60)
async def test_every_request_has_one_ending_and_leaves_nothing(office: Office) -> None:
    """`office` is asked for its short waits alone."""
    for seed in range(NUM_RUNS):
        interleaving = Interleaving(seed)
        with capture_logs() as logs:
            await interleaving.run()
        try:
            interleaving.check()
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")
        wrong = [each for each in logs if each["log_level"] in ("error", "critical")]
        assert [] == wrong, f"seed {seed}"
