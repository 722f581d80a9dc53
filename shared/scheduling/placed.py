"""What placement knows of a worker, and what it decides. Pure data."""

from dataclasses import dataclass
from typing import NamedTuple

from slipstream.shared.ids import HostId, WorkerId
from slipstream.shared.messages.common import Route
from slipstream.shared.scheduling.prompt_window import PromptWindow


class WorkerView(NamedTuple):
    """A worker that takes work."""

    worker_id: WorkerId
    host_id: HostId
    num_seats: int
    num_free_seats: int
    num_assigned: int
    kv_class: str = ""  # what its KV is good for
    load: float = 0.0  # 1: as much as it can do at a time
    window: PromptWindow = PromptWindow(1)
    prompt_tokens_per_s: float = 0.0  # measured; 0: not yet
    pulled_tokens_per_s: float = 0.0  # from other hosts; measured, or 0


@dataclass(frozen=True, slots=True)
class Placement:
    """The choice, and why."""

    decode_worker_id: WorkerId
    host_id: HostId
    prefill_worker_id: WorkerId | None
    route: Route  # the one taken: remote or local
    reason: str
    num_cached_tokens: int = 0  # of the prompt, as far as the scheduler knows

    @property
    def worker_ids(self) -> tuple[WorkerId, ...]:
        """Everybody who has to do with it."""
        if self.prefill_worker_id is None:
            return (self.decode_worker_id,)
        return (self.decode_worker_id, self.prefill_worker_id)

    @property
    def computes_prompt(self) -> WorkerId:
        """The worker that computes the prompt."""
        return self.prefill_worker_id or self.decode_worker_id
