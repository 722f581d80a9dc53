"""Where a request runs: its decode worker, and who computes the prompt. Pure."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from slipstream.shared.ids import HostId, WorkerId
from slipstream.shared.messages.common import Route


@dataclass(frozen=True, slots=True)
class WorkerView:
    """What placement needs to know of a live worker."""

    worker_id: WorkerId
    host_id: HostId
    num_free_seats: int
    num_assigned: int
    num_free_blocks: int = 0
    kv_class: str = ""  # what its KV is good for


@dataclass(frozen=True, slots=True)
class Placement:
    """The choice, and why."""

    decode_worker_id: WorkerId
    host_id: HostId
    prefill_worker_id: WorkerId | None
    route: Route  # the one taken: remote or local
    reason: str


def choose(
    route: Route,
    num_uncached_tokens: int,
    min_num_remote_tokens: int,
    decode_workers: Sequence[WorkerView],
    prefill_workers: Sequence[WorkerView],
    avoid: AbstractSet[WorkerId] = frozenset(),
    *,
    wants_prompt_logprobs: bool = False,
) -> Placement | None:
    """
    Return a placement, or None when no decode worker has a seat now.

    Logprobs of the prompt are made where the stream is, so that they need no hand-over.
    Workers in `avoid` (they failed this request) are taken only if there is no other.
    """
    decode = _least_loaded(decode_workers, avoid)
    if decode is None:
        return None
    prefill = _prefill_worker(decode, prefill_workers, avoid)
    reason = "prompt_logprobs"
    if not wants_prompt_logprobs:
        reason = _reason(route, num_uncached_tokens, min_num_remote_tokens, prefill)
    is_remote = reason in ("asked_for_remote", "long_prompt")
    return Placement(
        decode_worker_id=decode.worker_id,
        host_id=decode.host_id,
        prefill_worker_id=prefill.worker_id if is_remote and prefill is not None else None,
        route="remote" if is_remote else "local",
        reason=reason,
    )


def _prefill_worker(
    decode: WorkerView, workers: Sequence[WorkerView], avoid: AbstractSet[WorkerId]
) -> WorkerView | None:
    """
    Return who computes a prompt: a neighbour, or without any somebody whose KV can be pulled.

    Not one that failed the request already, as when the link to its host is cut: then the decode
    worker computes it itself.
    """
    neighbours = [each for each in workers if each.host_id == decode.host_id]
    if neighbours:
        return _least_loaded(neighbours, avoid)
    others = [
        each
        for each in workers
        if each.kv_class == decode.kv_class != "" and each.worker_id not in avoid
    ]
    return _least_loaded(others, avoid)


def _reason(
    route: Route, num_uncached_tokens: int, min_num_remote_tokens: int, prefill: WorkerView | None
) -> str:
    if route == "local":
        return "asked_for_local"
    if prefill is None:
        return "no_prefill_worker"
    if route == "remote":
        return "asked_for_remote"
    return "long_prompt" if num_uncached_tokens >= min_num_remote_tokens else "short_prompt"


def _least_loaded(workers: Sequence[WorkerView], avoid: AbstractSet[WorkerId]) -> WorkerView | None:
    seated = [worker for worker in workers if worker.num_free_seats > 0]
    return min(
        seated,
        key=lambda each: (
            each.worker_id in avoid,
            each.num_assigned,
            -each.num_free_blocks,
            each.worker_id,
        ),
        default=None,
    )
