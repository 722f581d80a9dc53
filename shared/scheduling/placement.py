"""Where a request runs: its decode worker, and who computes the prompt. Pure."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.shared.ids import HostId, WorkerId
from slipstream.shared.scheduling.fleet import Fleet
from slipstream.shared.scheduling.placed import Placement, WorkerView
from slipstream.shared.scheduling.waiting import WaitingRequest

_NUM_LOOKED_AT = 8
_MAX_RESERVED_PART = 4
_NUM_HOSTS = 4  # those of the least busy prefill workers
# A worker as busy as it can be counts like so many seconds of computing: prefixes are worth a
# detour, not a queue.
_LOAD_S = 0.5
_FIRST_TOKENS_PER_S = 1000.0  # of prompts, while nobody has measured any
_FIRST_PULLED_PER_S = 10_000.0  # tokens of KV between hosts, as above
# Decoding elsewhere pays off in ways that first tokens don't show: computing the prompt beside
# streams must be clearly faster.
_CLEARLY = 1.25

NO_CACHE: Mapping[HostId, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRules:
    """What an operator decides."""

    # `auto` prefills on the decode worker below this many uncached tokens.
    min_num_remote_tokens: int = 64
    # Seats of each decode worker, a quarter at most, that only the first class takes while it is
    # in use.
    num_reserved_seats: int = 2


class _Way(NamedTuple):
    """A prefill worker for a decode worker, or none, and why."""

    prefill: WorkerView | None
    reason: str


def choose(
    request: WaitingRequest,
    fleet: Fleet,
    rules: PlacementRules,
    avoid: AbstractSet[WorkerId] = frozenset(),
    cached: Mapping[HostId, int] = NO_CACHE,
    rank: int = 0,
) -> Placement | None:
    """
    Return a placement, or None when no worker has room now.

    The `rank` of its class says which seats are kept from it, and which prompts are before it.
    `cached` says how many tokens of the prompt each host holds, where it holds any. Workers in
    `avoid` (they failed this request) are taken only if there is no other.
    """
    seated = _seated(fleet, rules.num_reserved_seats if rank > 0 else 0, cached)
    others = [each for each in seated if each.worker_id not in avoid]
    # Whoever failed it is asked again only where nobody else will ever be free.
    if not others and _is_any_other_open(fleet, avoid):
        return None
    for decode in sorted(others or seated, key=lambda each: _cost(request, fleet, each, cached)):
        num_uncached = max(1, request.num_prompt_tokens - cached.get(decode.host_id, 0))
        way = _way(request, fleet, rules, decode, num_uncached, avoid, rank)
        if way is not None:
            return Placement(
                decode_worker_id=decode.worker_id,
                host_id=decode.host_id,
                prefill_worker_id=way.prefill.worker_id if way.prefill is not None else None,
                route="local" if way.prefill is None else "remote",
                reason=way.reason,
                num_cached_tokens=min(cached.get(decode.host_id, 0), request.num_prompt_tokens - 1),
            )
    return None


def _seated(fleet: Fleet, num_reserved: int, cached: Mapping[HostId, int]) -> list[WorkerView]:
    """
    Return the decode workers worth a look, by their seats.

    The least busy, and those of hosts where a prefix is or where prompts are computed soonest.
    """
    found = fleet.least_busy("decode", max_num=_NUM_LOOKED_AT)
    if fleet.num_open("decode") > len(found):
        hosts = {*cached, *(each.host_id for each in fleet.least_busy("prefill", None, _NUM_HOSTS))}
        found += (each for host_id in hosts for each in fleet.least_busy("decode", host_id))
    by_name = {each.worker_id: each for each in found}
    return [
        each
        for each in by_name.values()
        if each.num_free_seats > min(num_reserved, each.num_seats // _MAX_RESERVED_PART)
    ]


def _is_any_other_open(fleet: Fleet, avoid: AbstractSet[WorkerId]) -> bool:
    return fleet.num_open("decode") > sum(map(fleet.is_open, avoid))


def _cost(
    request: WaitingRequest,
    fleet: Fleet,
    decode: WorkerView,
    cached: Mapping[HostId, int],
) -> tuple[float, WorkerId]:
    """Return what a decode worker costs, in seconds."""
    num_uncached = request.num_prompt_tokens - cached.get(decode.host_id, 0)
    prefill = next(iter(fleet.least_busy("prefill", decode.host_id)), decode)
    seconds = num_uncached / _rate(prefill) + _LOAD_S * (decode.load + prefill.load)
    return (seconds, decode.worker_id)


def _way(
    request: WaitingRequest,
    fleet: Fleet,
    rules: PlacementRules,
    decode: WorkerView,
    num_uncached: int,
    avoid: AbstractSet[WorkerId],
    rank: int,
) -> _Way | None:
    """Return who computes the prompt, or None when whoever should has no room now."""
    is_open_here = decode.window.has_room(num_uncached, rank)
    why_here, prefill = _why_here(request, rules, num_uncached), None
    if why_here is None:
        prefill = _prefill_worker(fleet, decode, avoid, num_uncached, rank)
    if prefill is None:
        return _Way(None, why_here or "no_prefill_worker") if is_open_here else None
    is_asked_for = request.route == "remote"
    is_faster_here = _is_clearly_faster_here(decode, prefill, num_uncached, rank)
    if is_open_here and is_faster_here and not is_asked_for:
        return _Way(None, "prefill_busy")
    why_there = "asked_for_remote" if is_asked_for else "long_prompt"
    return _Way(prefill, why_there) if _has_room(prefill, num_uncached, rank) else None


def _why_here(request: WaitingRequest, rules: PlacementRules, num_uncached: int) -> str | None:
    """Return why the decode worker computes the prompt, whoever else could; None: it need not."""
    # Logprobs of the prompt are made where the stream is, so that they need no hand-over.
    if request.wants_prompt_logprobs:
        return "prompt_logprobs"
    if request.route == "local":
        return "asked_for_local"
    if request.route == "remote" or num_uncached >= rules.min_num_remote_tokens:
        return None
    is_short = request.num_prompt_tokens < rules.min_num_remote_tokens
    return "short_prompt" if is_short else "cached_prompt"


def _is_clearly_faster_here(
    decode: WorkerView, prefill: WorkerView, num_uncached: int, rank: int
) -> bool:
    """Tell whether the first token comes much sooner beside the streams; only rates can tell."""
    if not (decode.prompt_tokens_per_s and prefill.prompt_tokens_per_s):
        return False
    here_s = (decode.window.num_ahead(rank) + num_uncached) / decode.prompt_tokens_per_s
    there_s = (prefill.window.num_ahead(rank) + num_uncached) / prefill.prompt_tokens_per_s
    if prefill.host_id != decode.host_id:
        there_s += num_uncached / (decode.pulled_tokens_per_s or _FIRST_PULLED_PER_S)
    return here_s * _CLEARLY < there_s


def _prefill_worker(
    fleet: Fleet,
    decode: WorkerView,
    avoid: AbstractSet[WorkerId],
    num_uncached: int,
    rank: int,
) -> WorkerView | None:
    """
    Return who computes a prompt: a neighbour, or if none has room somebody whose KV can be pulled.

    Not one that failed the request already, as when the link to its host is cut: then the decode
    worker computes it itself.
    """
    neighbours = fleet.least_busy("prefill", decode.host_id, _NUM_LOOKED_AT)
    first = next((each for each in neighbours if each.worker_id not in avoid), None)
    if first is not None and _has_room(first, num_uncached, rank):
        return first
    far = [
        each
        for each in fleet.least_busy("prefill", max_num=_NUM_LOOKED_AT)
        if each.kv_class == decode.kv_class != "" and each.worker_id not in avoid
    ]
    open_far = next((each for each in far if _has_room(each, num_uncached, rank)), None)
    # Without any room the one that is waited for.
    return open_far or first or next(iter(neighbours or far), None)


def _has_room(prefill: WorkerView, num_uncached: int, rank: int) -> bool:
    return prefill.num_free_seats > 0 and prefill.window.has_room(num_uncached, rank)


def _rate(worker: WorkerView) -> float:
    return worker.prompt_tokens_per_s or _FIRST_TOKENS_PER_S
