"""What the console's page is told: services, requests, and what of both has changed."""

from typing import Literal

import msgspec

from slipstream.shared.messages.common import Role

Stage = Literal[
    "queued", "prefilling", "handing_over", "decoding", "finished", "cancelled", "failed", "gone"
]
# In the order in which a request walks through them; whatever comes after is an end.
LIVE_STAGES: tuple[Stage, ...] = ("queued", "prefilling", "handing_over", "decoding")


class ServiceView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process: what it holds, and how fast it is; what its role doesn't have is left out."""

    id: str
    role: Role
    is_draining: bool = False
    num_running: int = 0
    num_waiting: int = 0
    num_seats: int = 0
    num_free_blocks: int = 0
    num_blocks: int = 0
    tokens_per_s: float = 0.0  # that go to clients
    prompt_tokens_per_s: float = 0.0
    drafted_per_s: float = 0.0
    accepted_per_s: float = 0.0
    cache_hits: float | None = None  # the share of looked-up tokens that was there


class TimesView(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of a request that has ended; None for what nobody has measured."""

    queue_ms: float | None
    prefill_ms: float | None
    hand_over_ms: float | None
    ttft_ms: float | None
    total_ms: float


class RequestView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, under a name that gives no right to it."""

    name: str
    stage: Stage
    began_ms: float  # by the clock that `now_ms` is from
    marks: list[tuple[Stage, float]]  # milliseconds from its beginning to each stage
    attempt: int = 0
    client_id: str | None = None  # of a console's own
    prefill_worker: str | None = None
    decode_worker: str | None = None
    num_prompt_tokens: int | None = None
    num_tokens: int = 0
    num_cached_tokens: int | None = None
    num_drafted_tokens: int | None = None
    num_accepted_tokens: int | None = None
    times: TimesView | None = None
    reason: str | None = None  # why it ended: a finish reason or the code of an error


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """All services, and the requests that have changed; all of them in the first one."""

    is_first: bool
    now_ms: float
    num_open: int  # HTTP requests for tokens, of this gateway
    services: list[ServiceView]
    requests: list[RequestView]
