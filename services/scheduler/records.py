"""What the scheduler knows of each request until every holder has let go of it."""

import time
from dataclasses import dataclass, field

from slipstream.services.scheduler.admission import AdmittedRequest
from slipstream.services.scheduler.blame import NUM_CHARGES_ALONE, NUM_CHARGES_CRASHED, SILENT_CODES
from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.messages.common import Phase
from slipstream.shared.messages.jobs import ReplyTarget
from slipstream.shared.scheduling.placed import Placement
from slipstream.shared.telemetry.logging import request_fields
from slipstream.shared.telemetry.spans import Span
from slipstream.shared.worker.deadline import Deadline


@dataclass(eq=False)
class RequestRecord:
    """One request; the scheduler owns it, everybody else has messages."""

    request_id: RequestId
    request: AdmittedRequest
    reply: ReplyTarget
    root: Span
    deadline: Deadline
    choice: int = 0
    client_inbox: str = ""  # where its client takes answers; none where nobody waits for them
    arrived_at: float = field(default_factory=time.monotonic)
    attempt: int = 0
    num_failures: int = 0  # of attempts, where nothing was merely lost
    charged_attempts: set[int] = field(default_factory=set)  # its worker died in a step of these
    phase: Phase = "waiting"
    placement: Placement | None = None
    kv_class: str = ""  # of the decode worker placed last: what tells the same tokens again
    attempt_span: Span | None = None
    is_cancelled: bool = False
    is_on_its_way: bool = False  # the attempt's first worker has not answered yet
    is_leaving: bool = False  # the attempt is being taken back: what fails of it counts no more
    token_ids: list[int] = field(default_factory=list)  # known to have been emitted
    is_charged: bool = False  # its tenant has paid for the prompt
    job_priority: int = 0  # what workers order its attempt by
    num_given_tokens: int = 0  # of its output, that the attempt began with
    num_charged_tokens: int = 0  # of these, to its tenant
    num_unmentioned: int = 0  # reports of the holder in a row that don't know it
    is_replayed_alike: bool = True  # another attempt says the same tokens
    unmentioned_at: float = 0.0  # when the first of them came
    queue_ms: float = 0.0
    avoid: set[WorkerId] = field(default_factory=set)  # workers that failed it
    late_attempts: set[int] = field(default_factory=set)  # reported ended after they were replaced

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since arrival."""
        return (time.monotonic() - self.arrived_at) * 1000

    def may_have_shown_tokens(self, code: str) -> bool:
        """
        Tell whether the client may have read tokens that another attempt would not say again.

        In exact mode another attempt goes on behind those that were reported, and says the others
        again: readers cut them by index. By rejection other drafts may give other tokens, and the
        plain-torch engine may decide otherwise near a tie.
        """
        is_unlike = self.request.sampling.speculation_mode == "rejection"
        is_unknown = is_unlike and code in SILENT_CODES and self.phase == "decoding"
        is_unlike = is_unlike or not self.is_replayed_alike
        return self.request.is_streamed and is_unlike and (bool(self.token_ids) or is_unknown)

    @property
    def is_alone(self) -> bool:
        """Whether its next attempt shares no step with others."""
        return len(self.charged_attempts) >= NUM_CHARGES_ALONE

    @property
    def has_crashed_workers(self) -> bool:
        """Whether it is to end as what its workers died of."""
        return len(self.charged_attempts) >= NUM_CHARGES_CRASHED

    @property
    def log_fields(self) -> dict[str, str | int]:
        """What ties a line to the request, its trace and its attempt, and to its client's books."""
        fields: dict[str, str | int] = {
            **request_fields(self.request_id, self.root.context),
            "attempt": self.attempt,
        }
        if self.request.client_request_id is not None:
            fields["client_request_id"] = self.request.client_request_id
        return fields

    @property
    def holder(self) -> WorkerId | None:
        """The worker that should know of it now."""
        if self.placement is None:
            return None
        is_before = self.phase == "prefilling" and self.placement.prefill_worker_id is not None
        return self.placement.prefill_worker_id if is_before else self.placement.decode_worker_id
