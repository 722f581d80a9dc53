"""Whether a submission would be let in now. Asking opens nothing, and counts as no refusal."""

from slipstream.services.scheduler.front import Front
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.messages.common import Failed
from slipstream.shared.messages.generate import GenerateRequest
from slipstream.shared.messages.submission import Identity

# What one would ask for that says nothing of itself.
_ANY = Identity(key="", own_key="", body_digest="")


class SubmissionRoom:
    """The queue's room and the door's judgement, as submissions see them."""

    def __init__(self, config: SchedulerConfig, front: Front) -> None:
        self._config = config
        self._front = front

    def has_room(self, num_requests: int, num_bytes: int = 0) -> bool:
        """Tell whether so many more would find room in the queue."""
        return self._front.has_room(num_requests, num_bytes)

    def late(self, identity: Identity = _ANY) -> Failed | None:
        """Return the answer to a submission that would wait for too long, if it would."""
        limit_ms = self._config.max_deadline_ms
        deadline_ms = limit_ms if identity.deadline_ms is None else identity.deadline_ms
        if not 1 <= deadline_ms <= limit_ms:
            return None  # it will be refused by name
        request = GenerateRequest(
            tenant=identity.tenant,
            latency_class=identity.latency_class or "batch",
            deadline_ms=deadline_ms,
        )
        late = self._front.desk.load.judge_read(request, deadline_ms)
        if late is None:
            return None
        return Failed(code="overloaded", message=late.message, retry_after_ms=late.retry_after_ms)
