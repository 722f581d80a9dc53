"""The leases that a worker holds: renewed in bulk, watched by the worker's own clock."""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec
import structlog

from slipstream.shared.bus.bus import Bus
from slipstream.shared.bus.endpoint import call_kv
from slipstream.shared.errors import DeadlineExceededError, NoRespondersError, SlipstreamError
from slipstream.shared.ids import HostId, LeaseId, WorkerId
from slipstream.shared.kv.host_link import HostLink, LinkAnswer, LinkQuestion
from slipstream.shared.messages.kv import (
    Blocks,
    Commit,
    Committed,
    KvRefused,
    LeaseRenewal,
    Release,
    Renew,
    Renewed,
)
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.telemetry.context import SpanContext, inject
from slipstream.shared.telemetry.logging import request_fields
from slipstream.shared.worker.report_book import Attempt

log = structlog.get_logger()

# Together about a minute: a release that never arrives leaves blocks in quarantine until this
# process ends.
_RELEASE_TRIES = 30
_MAX_RELEASE_WAIT_S = 2.0
_ANSWER_S = 2.0


class _Held(msgspec.Struct):
    attempt: Attempt
    root_span: SpanContext | None  # for the logs
    expires_at: float
    grown_ids: list[int]
    grown_generations: list[int]
    is_lost: bool = False  # kept for the blocks that grew in: its release gives them back
    given_at: float | None = None  # when it was handed over
    keep_s: float = 0.0  # and how long it is kept for whoever takes the sequence over


class LeaseKeeper:
    """
    Renew every third of the lease's time; tell who lost a lease.

    No step may start under a lease that could run out before the step ends: `is_safe` says so by
    the monotonic clock of this process, counted from before the renewal was sent.
    """

    def __init__(
        self,
        bus: Bus,
        host_id: HostId,
        worker: tuple[WorkerId, int],
        lease_ms: int,
        link: HostLink | None = None,
    ) -> None:
        """Where NATS has no answer the manager is asked over the link, if there is one."""
        self._bus = bus
        self._link = link
        self._host_id = host_id
        self._worker_id, self._epoch = worker
        self._lease_s = lease_ms / 1000
        # Hears of each lease that is lost; set by who holds them, before the first.
        self.on_lost: Callable[[LeaseId], None] = lambda _lease_id: None
        self._held: dict[LeaseId, _Held] = {}

    def hold(
        self,
        lease_id: LeaseId,
        asked_at: float,
        attempt: Attempt,
        root_span: SpanContext | None = None,
    ) -> None:
        """Keep a lease that was granted by a message sent at `asked_at` (monotonic seconds)."""
        self._held[lease_id] = _Held(attempt, root_span, asked_at + self._lease_s, [], [])

    def give(self, lease_id: LeaseId, keep_s: float = 0.0) -> None:
        """
        Note that another worker was told to adopt a lease, or to fetch its blocks.

        It may die before it does. Then the lease is still ours, nobody would ever prove that it
        isn't written any more, and a renewal after `keep_s` gives it back.
        """
        held = self._held.get(lease_id)
        if held is not None:
            held.given_at = time.monotonic()
            held.keep_s = max(keep_s, self._lease_s / 3)

    def grow(self, lease_id: LeaseId, block_ids: Sequence[int], generations: Sequence[int]) -> None:
        """Note blocks that entered the sequence from this worker's grant."""
        held = self._held[lease_id]
        held.grown_ids.extend(block_ids)
        held.grown_generations.extend(generations)

    def is_safe(self, lease_id: LeaseId, margin_s: float) -> bool:
        """Tell whether a lease will surely last for another `margin_s`."""
        held = self._held.get(lease_id)
        if held is None or held.is_lost:
            return False
        return held.expires_at - time.monotonic() > margin_s

    async def commit(
        self,
        lease_id: LeaseId,
        num_tokens: int,
        token_ids: Sequence[int],
        num_known_blocks: int = 0,
        num_wanted_blocks: int = 0,
    ) -> Blocks | None:
        """
        Make the first positions of a lease read-only, and findable by their tokens.

        `token_ids` are the last of these positions, the blocks committed now among them. Return the
        blocks that the lease had been promised and gets now, or None without an answer: others find
        less, and whoever needs the blocks asks again.
        """
        held = self._held.get(lease_id)
        if held is None or held.is_lost:
            return Blocks()  # as when it is refused: nobody is to be told again
        message = Commit(
            request_id=held.attempt[0],
            attempt=held.attempt[1],
            lease_id=lease_id,
            worker_id=self._worker_id,
            num_tokens=num_tokens,
            token_ids=PackedInts(token_ids),
            # Told again with the next renewal, which alone takes note of the answer.
            grown=_grown(held),
            num_known_blocks=num_known_blocks,
            num_wanted_blocks=num_wanted_blocks,
        )
        try:
            answer: Committed | KvRefused = await call_kv(self._bus, self._host_id, message)
        except SlipstreamError as error:
            fields = _fields(held.attempt, held.root_span)
            log.warning("commit_unanswered", **fields, lease_id=lease_id, error=str(error))
            return None
        return answer.blocks if isinstance(answer, Committed) else Blocks()

    async def release(
        self, lease_id: LeaseId, attempt: Attempt, context: SpanContext | None = None
    ) -> bool:
        """
        End a lease between two steps; this is also the proof that nothing of ours writes any more.

        Repeated until it is answered; False when the manager can't be reached (it will notice the
        end of this process, or the lease runs out into quarantine).
        """
        held = self._held.pop(lease_id, None)
        grown = _grown(held) if held is not None else Blocks()
        message = Release(
            request_id=attempt[0],
            attempt=attempt[1],
            lease_id=lease_id,
            worker_id=self._worker_id,
            grown=grown,
        )
        headers = inject(context) if context is not None else None
        trace = context or (held.root_span if held is not None else None)
        for number in range(_RELEASE_TRIES):
            try:
                await self._ask(message, headers)
            except SlipstreamError as error:
                log.warning(
                    "release_unanswered",
                    **_fields(attempt, trace),
                    lease_id=lease_id,
                    error=str(error),
                )
                await asyncio.sleep(min(0.1 * 2**number, _MAX_RELEASE_WAIT_S))
            else:
                return True
        return False

    async def renew_loop(self) -> None:
        """Renew for ever."""
        while True:
            await asyncio.sleep(self._lease_s / 3)
            if self._held:
                await self.renew()

    async def renew(self) -> None:
        """Renew all leases in one message."""
        sent = {
            lease_id: (held, len(held.grown_ids))
            for lease_id, held in self._held.items()
            if not held.is_lost
        }
        message = Renew(
            worker_id=self._worker_id,
            worker_epoch=self._epoch,
            renewals=[
                LeaseRenewal(lease_id=lease_id, grown=_grown(held))
                for lease_id, (held, _) in sent.items()
            ],
        )
        asked_at = time.monotonic()
        try:
            answer = await self._ask(message)
        except SlipstreamError as error:
            log.warning("renewal_unanswered", num_leases=len(sent), error=str(error))
            return
        if isinstance(answer, KvRefused):
            log.warning("renewal_refused", reason=answer.reason)
            return
        assert isinstance(answer, Renewed), "a renewal has no other answer"
        lost = set(answer.lost)
        for lease_id, (held, num_grown) in sent.items():
            if lease_id in lost:
                self._lose(lease_id, held)
                continue
            held.expires_at = asked_at + answer.lease_ms / 1000
            del held.grown_ids[:num_grown], held.grown_generations[:num_grown]
        await self._take_back(asked_at)

    async def _ask(
        self, message: LinkQuestion, headers: dict[str, str] | None = None
    ) -> LinkAnswer:
        """Ask the manager: over NATS, or past it, so that no trouble there costs a lease."""
        if self._link is not None and not self._bus.connection.is_up:
            return await self._link.ask(message, _ANSWER_S)
        try:
            answer: LinkAnswer = await call_kv(
                self._bus, self._host_id, message, timeout_s=_ANSWER_S, headers=headers
            )
        except (DeadlineExceededError, NoRespondersError):
            if self._link is None:
                raise
            return await self._link.ask(message, _ANSWER_S)
        return answer

    def _lose(self, lease_id: LeaseId, held: _Held) -> None:
        if held.given_at is not None and time.monotonic() < held.expires_at:
            self._held.pop(lease_id, None)  # adopted, as it should be
        elif held.given_at is not None:
            # Or it ran out before it could be: then its blocks wait for our proof.
            held.is_lost = True
        elif self._held.get(lease_id) is held:
            held.is_lost = True
            log.warning("lease_lost", **_fields(held.attempt, held.root_span), lease_id=lease_id)
            self.on_lost(lease_id)

    async def _take_back(self, now: float) -> None:
        """Release what was handed over long ago and never taken."""
        for lease_id, held in list(self._held.items()):
            if held.given_at is not None and now - held.given_at > held.keep_s:
                fields = _fields(held.attempt, held.root_span)
                log.warning("lease_never_taken", **fields, lease_id=lease_id)
                await self.release(lease_id, held.attempt)


def _fields(attempt: Attempt, context: SpanContext | None) -> dict[str, str | int]:
    return {**request_fields(attempt[0], context), "attempt": attempt[1]}


def _grown(held: _Held) -> Blocks:
    return Blocks(PackedInts(held.grown_ids), PackedInts(held.grown_generations))
