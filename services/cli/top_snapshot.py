"""What `slipstream top` shows, and prints as JSON: one moment of a running stack."""

import msgspec


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker."""

    worker_id: str
    role: str
    host_id: str | None
    state: str  # ready, draining, or silent: no report for seconds
    num_seats: int
    num_held: int
    num_waiting: int = 0  # for KV blocks
    num_prefilling: int = 0
    num_running: int = 0
    tokens_per_s: float = 0.0  # generated


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """What schedulers hold."""

    num_waiting: int = 0  # for a worker
    num_prefilling: int = 0
    num_running: int = 0
    oldest_s: float = 0.0  # how long the oldest of the waiting has waited
    num_submitted: int = 0  # in the stream, nobody has taken them
    num_refused: int = 0  # since the schedulers were started


class HostRow(msgspec.Struct, frozen=True, kw_only=True):
    """KV blocks of a host."""

    host_id: str
    num_blocks: int
    blocks: dict[str, int]  # by state
    stored_per_s: float = 0.0  # blocks that the prefix cache found room for
    removed_per_s: float = 0.0


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of the requests that ended lately, None where none did."""

    p50: float | None = None
    p95: float | None = None
    history: list[float | None] = []  # the median of each interval, the latest last


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything. Shares are of the last seconds, None where there was nothing to share."""

    services: dict[str, int]  # how many of each role answer
    workers: list[WorkerRow] = []
    queue: QueueRow = QueueRow()
    hosts: list[HostRow] = []
    tokens_per_s: float = 0.0
    tokens_history: list[float | None] = []
    ttft_ms: Times = Times()
    tpot_ms: Times = Times()
    draft_acceptance: float | None = None  # accepted of the tested drafts
    cache_hits: float | None = None  # cached of the prompt tokens
