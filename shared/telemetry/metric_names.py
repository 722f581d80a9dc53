"""Every metric: what it counts, in which unit, by which labels."""

from typing import Final, Literal, NamedTuple


class Metric(NamedTuple):
    """A metric by the conventions of Prometheus: base units, the unit in the name."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    unit: str  # what one of it is
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()  # upper bounds, of a histogram


# A small model takes a millisecond a token on a fast machine.
_SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)
_SHORT_SECONDS: Final = (
    *(0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005),
    *(0.0075, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)
_SEQUENCES: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0)

# Requests. An ending is counted by the process that sends it, so that sums over all processes are
# what clients were told.
REQUESTS: Final = Metric(
    "gauge",
    "slipstream_requests",
    "requests",
    "Requests that this process holds: waiting (at the scheduler for a worker, at a worker for KV"
    " blocks), prefilling, running.",
    ("role", "state"),
)
QUEUE_AGE: Final = Metric(
    "gauge",
    "slipstream_queue_age_seconds",
    "seconds",
    "Age of the oldest request that waits for a worker; 0 when none does.",
)
PLACEMENTS: Final = Metric(
    "counter",
    "slipstream_placements_total",
    "attempts",
    "Attempts placed on workers, by who computes the prompt and why.",
    ("route", "reason"),
)
REFUSED: Final = Metric(
    "counter",
    "slipstream_refused_total",
    "requests",
    "Requests refused at the door, by the error code of the answer.",
    ("reason",),
)
FINISHED: Final = Metric(
    "counter",
    "slipstream_finished_total",
    "requests",
    "Requests ended by this process with an answer, by finish reason.",
    ("reason",),
)
FAILED: Final = Metric(
    "counter",
    "slipstream_failed_total",
    "requests",
    "Admitted requests ended by this process with an error, by its code.",
    ("code",),
)
LATE_COMPLETIONS: Final = Metric(
    "counter",
    "slipstream_late_completions_total",
    "messages",
    "Messages about leases or attempts that had ended already; ignored.",
)

# Submissions. The stream is shared: each scheduler shows all that wait, and what it holds itself.
SUBMISSIONS: Final = Metric(
    "gauge",
    "slipstream_submissions",
    "submissions",
    "Submissions by state: waiting (in the stream), taken (by any scheduler, or put back for"
    " later), in_hand (of this scheduler).",
    ("state",),
)
REDELIVERED: Final = Metric(
    "counter",
    "slipstream_redelivered_total",
    "submissions",
    "Submissions taken that had been taken before.",
)
DEAD: Final = Metric(
    "counter",
    "slipstream_dead_total",
    "submissions",
    "Submissions that ended as dead letters, by the error code of their result.",
    ("reason",),
)

# Tokens.
PROMPT_TOKENS: Final = Metric(
    "counter",
    "slipstream_prompt_tokens_total",
    "tokens",
    "Prompt tokens of requests that got their first token here.",
)
CACHED_TOKENS: Final = Metric(
    "counter",
    "slipstream_cached_tokens_total",
    "tokens",
    "Those of the prompt tokens whose KV was in the prefix cache.",
)
OUTPUT_TOKENS: Final = Metric(
    "counter",
    "slipstream_output_tokens_total",
    "tokens",
    "Output tokens generated.",
)
DRAFT_TOKENS: Final = Metric(
    "counter",
    "slipstream_draft_tokens_total",
    "tokens",
    "Draft tokens: offered by a draft worker; proposed (came in time for a step); of these tested"
    " by the target; of these accepted.",
    ("outcome",),
)
PREEMPTIONS: Final = Metric(
    "counter",
    "slipstream_preemptions_total",
    "preemptions",
    "Sequences that gave their KV blocks back and were computed again later.",
)
NONFINITE_ROWS: Final = Metric(
    "counter",
    "slipstream_nonfinite_rows_total",
    "rows",
    "Rows of logits without a finite number, or with a NaN; each failed its request.",
)

# Times.
QUEUE_TIME: Final = Metric(
    "histogram",
    "slipstream_queue_time_seconds",
    "seconds",
    "Arrival of a request to its first placement.",
    buckets=_SECONDS,
)
TIME_TO_FIRST_TOKEN: Final = Metric(
    "histogram",
    "slipstream_time_to_first_token_seconds",
    "seconds",
    "Arrival of a request at the scheduler to its first token.",
    buckets=_SECONDS,
)
TIME_PER_OUTPUT_TOKEN: Final = Metric(
    "histogram",
    "slipstream_time_per_output_token_seconds",
    "seconds",
    "Mean time of a finished request's tokens after the first.",
    buckets=_SECONDS,
)

# Steps of a worker's engine.
BATCH_SIZE: Final = Metric(
    "histogram",
    "slipstream_batch_size",
    "sequences",
    "Sequences in a step.",
    buckets=_SEQUENCES,
)
ENGINE_BUSY: Final = Metric(
    "counter",
    "slipstream_engine_busy_seconds_total",
    "seconds",
    "Time inside the engine's forward passes.",
)
WORK_TIME: Final = Metric(
    "counter",
    "slipstream_work_seconds_total",
    "seconds",
    "Time during which there was a sequence to compute.",
)

ACTIVITY: Final = Metric(
    "counter",
    "slipstream_activity_seconds_total",
    "seconds",
    "Time of this worker by what it went into; all of them together are the time it has run.",
    ("activity",),
)
REQUEST_ACTIVITY: Final = Metric(
    "counter",
    "slipstream_request_activity_seconds_total",
    "seconds",
    "The same, each moment counted once for each request that the worker held.",
    ("activity",),
)
ENGINE_BYTES: Final = Metric(
    "counter",
    "slipstream_engine_bytes_total",
    "bytes",
    "Bytes that passes of the native engine had to move: weights, and kv (read and written).",
    ("what",),
)

# KV blocks.
KV_BLOCKS: Final = Metric(
    "gauge",
    "slipstream_kv_blocks",
    "blocks",
    "KV blocks of this host by state.",
    ("state",),
)
KV_POOL_BLOCKS: Final = Metric(
    "gauge",
    "slipstream_kv_pool_blocks",
    "blocks",
    "KV blocks of this host in all.",
)
KV_LOOKUPS: Final = Metric(
    "counter",
    "slipstream_kv_lookups_total",
    "leases",
    "Leases for which the prefix cache was searched.",
)
KV_LOOKED_UP_TOKENS: Final = Metric(
    "counter",
    "slipstream_kv_looked_up_tokens_total",
    "tokens",
    "Tokens of the sequences that were searched for.",
)
KV_CACHED_TOKENS: Final = Metric(
    "counter",
    "slipstream_kv_cached_tokens_total",
    "tokens",
    "Those of the tokens searched for whose KV was found.",
)
KV_EVICTED_BLOCKS: Final = Metric(
    "counter",
    "slipstream_kv_evicted_blocks_total",
    "blocks",
    "Blocks that can be found no more, for want of room.",
)
KV_RESERVED_BLOCKS: Final = Metric(
    "gauge",
    "slipstream_kv_reserved_blocks",
    "blocks",
    "Free or cached blocks that are promised to prompts being computed.",
)
KV_SPILLED_BLOCKS: Final = Metric(
    "gauge",
    "slipstream_kv_spilled_blocks",
    "blocks",
    "Blocks in the file of the second tier.",
)
KV_RESTORED_BLOCKS: Final = Metric(
    "counter",
    "slipstream_kv_restored_blocks_total",
    "blocks",
    "Blocks that came back from the file of the second tier.",
)
KNOWN_BLOCKS: Final = Metric(
    "gauge",
    "slipstream_known_blocks",
    "blocks",
    "Blocks of each host's prefix cache that the scheduler knows of.",
    ("host_id",),
)
PREFIX_RESYNCS: Final = Metric(
    "counter",
    "slipstream_prefix_resyncs_total",
    "questions",
    "Times that the scheduler asked a host for all the blocks it knows: events were missed, or it"
    " came late.",
)
KV_LEASES: Final = Metric("gauge", "slipstream_kv_leases", "leases", "Leases alive.")
KV_LEASE_AGE: Final = Metric(
    "gauge",
    "slipstream_kv_lease_age_seconds",
    "seconds",
    "Age of the oldest lease; 0 when there is none.",
)

# HTTP, at the gateway.
HTTP_REQUESTS: Final = Metric(
    "counter",
    "slipstream_http_requests_total",
    "requests",
    "HTTP requests by endpoint and status; 499 where the client went before the end.",
    ("endpoint", "status"),
)
HTTP_RUNNING: Final = Metric(
    "gauge",
    "slipstream_http_running",
    "requests",
    "HTTP requests for tokens that are being answered.",
)
HTTP_TIME_TO_FIRST_BYTE: Final = Metric(
    "histogram",
    "slipstream_http_time_to_first_byte_seconds",
    "seconds",
    "Arrival of a streamed HTTP request to the first byte of its answer.",
    buckets=_SECONDS,
)
HTTP_FIRST_FRAME: Final = Metric(
    "histogram",
    "slipstream_http_first_frame_seconds",
    "seconds",
    "First frame of a stream at the gateway to the first byte that leaves for it.",
    buckets=_SHORT_SECONDS,
)
HTTP_DISCONNECTS: Final = Metric(
    "counter",
    "slipstream_http_disconnects_total",
    "requests",
    "HTTP requests whose client went before the end; each was cancelled.",
)
HTTP_CUT_OFF: Final = Metric(
    "counter",
    "slipstream_http_cut_off_total",
    "requests",
    "HTTP requests whose client took nothing for too long; each was cancelled.",
)
HTTP_DROPPED_FRAMES: Final = Metric(
    "counter",
    "slipstream_http_dropped_frames_total",
    "frames",
    "Frames that found no room beside a slow reader; they are asked for again.",
)

# The process itself. What else is called process_ comes with the Prometheus client.
PROCESS_SWAP: Final = Metric(
    "gauge",
    "process_swap_bytes",
    "bytes",
    "Memory of this process that is swapped out, beside process_resident_memory_bytes.",
)
PROCESS_CPU: Final = Metric(
    "counter",
    "process_cpu_seconds_total",
    "seconds",
    "Processor time of this process.",
)
UPTIME: Final = Metric(
    "gauge",
    "slipstream_uptime_seconds",
    "seconds",
    "Time since this process began.",
)
INFO: Final = Metric(
    "gauge",
    "slipstream_info",
    "processes",
    "Always 1; who this process is.",
    ("role", "worker_id", "version"),
)

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
