"""What a worker holds and what it let go of lately, as its reports tell it."""

from dataclasses import dataclass, field

from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import FinishReason, Phase, Usage
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import EndedSequence, HeldSequence, WorkerDeath

Attempt = tuple[RequestId, int]

# Reports may be lost; an ending is told in so many.
NUM_REPEATS = 4


@dataclass(slots=True)
class _Held:
    phase: Phase
    token_ids: list[int] = field(default_factory=list)
    num_reported: int = 0


class ReportBook:
    """The difference since the last report, or everything."""

    def __init__(self) -> None:
        self._held: dict[Attempt, _Held] = {}
        self._ended: dict[Attempt, tuple[EndedSequence, int]] = {}
        self._deaths: list[tuple[WorkerDeath, int]] = []

    @property
    def num_held(self) -> int:
        """Sequences held now."""
        return len(self._held)

    def hold(self, attempt: Attempt, phase: Phase, token_ids: list[int] | None = None) -> None:
        """Note a sequence, or its new phase; `token_ids` are those emitted by earlier attempts."""
        held = self._held.get(attempt)
        if held is None:
            self._held[attempt] = _Held(phase, list(token_ids or []))
        else:
            held.phase = phase

    def emit(self, attempt: Attempt, token_ids: list[int]) -> None:
        """Note tokens that went to the client."""
        held = self._held.get(attempt)
        if held is not None:
            held.token_ids.extend(token_ids)

    def num_emitted(self, attempt: Attempt) -> int:
        """Return how many tokens were noted so far."""
        held = self._held.get(attempt)
        return len(held.token_ids) if held is not None else 0

    def end(
        self,
        attempt: Attempt,
        *,
        was_answered: bool = False,
        finish_reason: FinishReason | None = None,
        code: str | None = None,
        message: str = "",
        usage: Usage | None = None,
        ttft_ms: float = 0.0,
        total_ms: float = 0.0,
    ) -> None:
        """Note that a sequence is held no more, and how it ended here. The first ending stands."""
        self._held.pop(attempt, None)
        ended = EndedSequence(
            request_id=attempt[0],
            attempt=attempt[1],
            was_answered=was_answered,
            finish_reason=finish_reason,
            code=code,
            message=message,
            usage=usage,
            ttft_ms=ttft_ms,
            total_ms=total_ms,
        )
        self._ended.setdefault(attempt, (ended, NUM_REPEATS))

    def died(self, death: WorkerDeath) -> None:
        """Note that a worker of the host has ended."""
        self._deaths.append((death, NUM_REPEATS))

    def take_deaths(self) -> list[WorkerDeath]:
        """Return the deaths that the next report tells, and count them as told."""
        deaths = [told for told, _ in self._deaths]
        self._deaths = [(told, left - 1) for told, left in self._deaths if left > 1]
        return deaths

    def take(self, *, is_full: bool) -> tuple[list[HeldSequence], list[EndedSequence]]:
        """Return what the next report says, and count it as told."""
        held = []
        for (request_id, number), each in self._held.items():
            first = 0 if is_full else each.num_reported
            held.append(
                HeldSequence(
                    request_id=request_id,
                    attempt=number,
                    phase=each.phase,
                    next_index=len(each.token_ids),
                    token_ids=PackedInts(each.token_ids[first:]),
                )
            )
            each.num_reported = len(each.token_ids)
        ended = [told for told, _ in self._ended.values()]
        self._ended = {
            attempt: (told, left - 1) for attempt, (told, left) in self._ended.items() if left > 1
        }
        return held, ended
