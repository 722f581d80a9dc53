"""Every name that telemetry uses: services, spans, attributes, events, metrics.

`messaging.*` and `gen_ai.*` follow the OpenTelemetry conventions. They are copied because those
conventions still move and the constants of the Python package are marked deprecated. What the
conventions have no word for is ours and begins with `slipstream.`. It is long because it is the one
place for all of them.
"""

from typing import Final, Literal, NamedTuple

# Services: one role, one name. The client is whoever asked.
SERVICE_SCHEDULER: Final = "slipstream-scheduler"
SERVICE_PREFILL: Final = "slipstream-prefill"
SERVICE_DECODE: Final = "slipstream-decode"
SERVICE_DRAFT: Final = "slipstream-draft"
SERVICE_KV: Final = "slipstream-kv"
SERVICE_GATEWAY: Final = "slipstream-gateway"
SERVICE_CLIENT: Final = "slipstream-client"

# Spans of one request, in the order in which they start. Never a subject or an id in a name.
# Before them all stands `POST` and the path of an HTTP request, where the gateway was asked.
SPAN_SEND_GENERATE: Final = "send generate"  # client, only where it traces
SPAN_PROCESS_GENERATE: Final = "process generate"  # scheduler: the root
SPAN_PROCESS_SUBMIT: Final = "process submit"  # scheduler: the root, one each time it is taken
SPAN_CHOICE: Final = "choice"  # of several that a request wants: what is the root of one alone
SPAN_ATTEMPT: Final = "attempt"
SPAN_SCHEDULE: Final = "schedule"
SPAN_SEND_PREFILL: Final = "send prefill"
SPAN_PROCESS_PREFILL: Final = "process prefill"
SPAN_KV_LEASE: Final = "kv lease"
SPAN_SEND_DECODE: Final = "send decode"
SPAN_PROCESS_DECODE: Final = "process decode"
SPAN_KV_ADOPT: Final = "kv adopt"
SPAN_DRAFT: Final = "draft"
SPAN_KV_TRANSFER: Final = "kv transfer"
SPAN_KV_RELEASE: Final = "kv release"

# A batch step: sampled, in a trace of its own, with links to the spans of its requests.
SPAN_STEP: Final = "step"

# Events on "process decode". Rare ones only: never one a token.
EVENT_FIRST_TOKEN: Final = "first_token"  # noqa: S105 - no secret
EVENT_PREEMPTED: Final = "preempted"
EVENT_RESUMED: Final = "resumed"
EVENT_CANCELLED: Final = "cancelled"

# Resource.
SERVICE_NAME: Final = "service.name"
SERVICE_VERSION: Final = "service.version"
SERVICE_INSTANCE_ID: Final = "service.instance.id"

ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

# Messaging.
MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_SYSTEM_NATS: Final = "nats"  # used by everyone, not yet registered
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
OPERATION_SEND: Final = "send"
OPERATION_RECEIVE: Final = "receive"
OPERATION_PROCESS: Final = "process"
OPERATION_SETTLE: Final = "settle"
MESSAGING_DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGING_DESTINATION_TEMPLATE: Final = "messaging.destination.template"
MESSAGING_MESSAGE_ID: Final = "messaging.message.id"
MESSAGING_CONVERSATION_ID: Final = "messaging.message.conversation_id"  # the request id
MESSAGING_BODY_SIZE: Final = "messaging.message.body.size"
MESSAGING_BATCH_COUNT: Final = "messaging.batch.message_count"
MESSAGING_CONSUMER_GROUP: Final = "messaging.consumer.group.name"

# HTTP.
HTTP_REQUEST_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_RESPONSE_STATUS_CODE: Final = "http.response.status_code"

# GenAI.
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_OPERATION_CHAT: Final = "chat"
GEN_AI_OPERATION_TEXT_COMPLETION: Final = "text_completion"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_REQUEST_TOP_K: Final = "gen_ai.request.top_k"
GEN_AI_REQUEST_SEED: Final = "gen_ai.request.seed"
GEN_AI_REQUEST_STREAM: Final = "gen_ai.request.stream"
GEN_AI_REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
GEN_AI_REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"  # a list
GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"

# Ours. Times in seconds, sizes in bytes.
ATTEMPT: Final = "slipstream.attempt"
CLIENT_REQUEST_ID: Final = "slipstream.client_request_id"
WORKER_ID: Final = "slipstream.worker.id"
WORKER_ROLE: Final = "slipstream.worker.role"
HOST_ID: Final = "slipstream.host.id"
ROUTE: Final = "slipstream.route"
POLICY: Final = "slipstream.policy"
LATENCY_CLASS: Final = "slipstream.latency_class"
NUM_WAITING: Final = "slipstream.num_waiting"
DECODE_WORKER_ID: Final = "slipstream.worker.decode_id"
PREFILL_WORKER_ID: Final = "slipstream.worker.prefill_id"
ROUTE_REASON: Final = "slipstream.route.reason"
QUEUE_TIME_S: Final = "slipstream.queue_time_s"
TIME_TO_FIRST_TOKEN_S: Final = "slipstream.time_to_first_token_s"  # noqa: S105 - no secret
TIME_PER_OUTPUT_TOKEN_S: Final = "slipstream.time_per_output_token_s"  # noqa: S105 - no secret
NUM_CACHED_TOKENS: Final = "slipstream.num_cached_tokens"
NUM_CHUNKS: Final = "slipstream.num_chunks"
NUM_STEPS: Final = "slipstream.num_steps"
NUM_SEQUENCES: Final = "slipstream.num_sequences"
NUM_PREEMPTIONS: Final = "slipstream.num_preemptions"
NUM_DRAFT_PROPOSED: Final = "slipstream.num_draft_proposed"
NUM_DRAFT_TESTED: Final = "slipstream.num_draft_tested"
NUM_DRAFT_ACCEPTED: Final = "slipstream.num_draft_accepted"
DRAFT_ACCEPTANCE: Final = "slipstream.draft_acceptance"  # as expected at the end
NUM_STEPS_DRAFT_UNUSED: Final = "slipstream.num_steps_draft_unused"  # it would not have paid
LEASE_ID: Final = "slipstream.lease.id"
LEASE_GENERATION: Final = "slipstream.lease.generation"
LEASE_NUM_BLOCKS: Final = "slipstream.lease.num_blocks"
LEASE_NUM_BLOCKS_SHARED: Final = "slipstream.lease.num_blocks_shared"
TRANSFER_NUM_BYTES: Final = "slipstream.transfer.num_bytes"
TRANSFER_NUM_BLOCKS: Final = "slipstream.transfer.num_blocks"
IS_RESUMED: Final = "slipstream.is_resumed"  # ended by a successor under the same ids
NUM_EVENTS_DROPPED: Final = "slipstream.num_events_dropped"
NUM_LINKS_DROPPED: Final = "slipstream.num_links_dropped"


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
METRIC_REQUESTS: Final = Metric(
    "gauge",
    "slipstream_requests",
    "requests",
    "Requests that this process holds: waiting (at the scheduler for a worker, at a worker for KV"
    " blocks), prefilling, running.",
    ("role", "state"),
)
METRIC_QUEUE_AGE: Final = Metric(
    "gauge",
    "slipstream_queue_age_seconds",
    "seconds",
    "Age of the oldest request that waits for a worker; 0 when none does.",
)
METRIC_PLACEMENTS: Final = Metric(
    "counter",
    "slipstream_placements_total",
    "attempts",
    "Attempts placed on workers, by who computes the prompt and why.",
    ("route", "reason"),
)
METRIC_REFUSED: Final = Metric(
    "counter",
    "slipstream_refused_total",
    "requests",
    "Requests refused at the door, by the error code of the answer.",
    ("reason",),
)
METRIC_FINISHED: Final = Metric(
    "counter",
    "slipstream_finished_total",
    "requests",
    "Requests ended by this process with an answer, by finish reason.",
    ("reason",),
)
METRIC_FAILED: Final = Metric(
    "counter",
    "slipstream_failed_total",
    "requests",
    "Admitted requests ended by this process with an error, by its code.",
    ("code",),
)
METRIC_LATE_COMPLETIONS: Final = Metric(
    "counter",
    "slipstream_late_completions_total",
    "messages",
    "Messages about leases or attempts that had ended already; ignored.",
)

# Submissions. The stream is shared: each scheduler shows all that wait, and what it holds itself.
METRIC_SUBMISSIONS: Final = Metric(
    "gauge",
    "slipstream_submissions",
    "submissions",
    "Submissions by state: waiting (in the stream), taken (by any scheduler, or put back for"
    " later), in_hand (of this scheduler).",
    ("state",),
)
METRIC_REDELIVERED: Final = Metric(
    "counter",
    "slipstream_redelivered_total",
    "submissions",
    "Submissions taken that had been taken before.",
)
METRIC_DEAD: Final = Metric(
    "counter",
    "slipstream_dead_total",
    "submissions",
    "Submissions that ended as dead letters, by the error code of their result.",
    ("reason",),
)

# Tokens.
METRIC_PROMPT_TOKENS: Final = Metric(
    "counter",
    "slipstream_prompt_tokens_total",
    "tokens",
    "Prompt tokens of requests that got their first token here.",
)
METRIC_CACHED_TOKENS: Final = Metric(
    "counter",
    "slipstream_cached_tokens_total",
    "tokens",
    "Those of the prompt tokens whose KV was in the prefix cache.",
)
METRIC_OUTPUT_TOKENS: Final = Metric(
    "counter",
    "slipstream_output_tokens_total",
    "tokens",
    "Output tokens generated.",
)
METRIC_DRAFT_TOKENS: Final = Metric(
    "counter",
    "slipstream_draft_tokens_total",
    "tokens",
    "Draft tokens: offered by a draft worker; proposed (came in time for a step); of these tested"
    " by the target; of these accepted.",
    ("outcome",),
)
METRIC_PREEMPTIONS: Final = Metric(
    "counter",
    "slipstream_preemptions_total",
    "preemptions",
    "Sequences that gave their KV blocks back and were computed again later.",
)
METRIC_NONFINITE_ROWS: Final = Metric(
    "counter",
    "slipstream_nonfinite_rows_total",
    "rows",
    "Rows of logits without a finite number, or with a NaN; each failed its request.",
)

# Times.
METRIC_QUEUE_TIME: Final = Metric(
    "histogram",
    "slipstream_queue_time_seconds",
    "seconds",
    "Arrival of a request to its first placement.",
    buckets=_SECONDS,
)
METRIC_TIME_TO_FIRST_TOKEN: Final = Metric(
    "histogram",
    "slipstream_time_to_first_token_seconds",
    "seconds",
    "Arrival of a request at the scheduler to its first token.",
    buckets=_SECONDS,
)
METRIC_TIME_PER_OUTPUT_TOKEN: Final = Metric(
    "histogram",
    "slipstream_time_per_output_token_seconds",
    "seconds",
    "Mean time of a finished request's tokens after the first.",
    buckets=_SECONDS,
)

# Steps of a worker's engine.
METRIC_BATCH_SIZE: Final = Metric(
    "histogram",
    "slipstream_batch_size",
    "sequences",
    "Sequences in a step.",
    buckets=_SEQUENCES,
)
METRIC_ENGINE_BUSY: Final = Metric(
    "counter",
    "slipstream_engine_busy_seconds_total",
    "seconds",
    "Time inside the engine's forward passes.",
)
METRIC_WORK_TIME: Final = Metric(
    "counter",
    "slipstream_work_seconds_total",
    "seconds",
    "Time during which there was a sequence to compute.",
)

METRIC_ACTIVITY: Final = Metric(
    "counter",
    "slipstream_activity_seconds_total",
    "seconds",
    "Time of this worker by what it went into; all of them together are the time it has run.",
    ("activity",),
)
METRIC_REQUEST_ACTIVITY: Final = Metric(
    "counter",
    "slipstream_request_activity_seconds_total",
    "seconds",
    "The same, each moment counted once for each request that the worker held.",
    ("activity",),
)
METRIC_ENGINE_BYTES: Final = Metric(
    "counter",
    "slipstream_engine_bytes_total",
    "bytes",
    "Bytes that passes of the native engine had to move: weights, and kv (read and written).",
    ("what",),
)

# KV blocks.
METRIC_KV_BLOCKS: Final = Metric(
    "gauge",
    "slipstream_kv_blocks",
    "blocks",
    "KV blocks of this host by state.",
    ("state",),
)
METRIC_KV_POOL_BLOCKS: Final = Metric(
    "gauge",
    "slipstream_kv_pool_blocks",
    "blocks",
    "KV blocks of this host in all.",
)
METRIC_KV_LOOKUPS: Final = Metric(
    "counter",
    "slipstream_kv_lookups_total",
    "leases",
    "Leases for which the prefix cache was searched.",
)
METRIC_KV_LOOKED_UP_TOKENS: Final = Metric(
    "counter",
    "slipstream_kv_looked_up_tokens_total",
    "tokens",
    "Tokens of the sequences that were searched for.",
)
METRIC_KV_CACHED_TOKENS: Final = Metric(
    "counter",
    "slipstream_kv_cached_tokens_total",
    "tokens",
    "Those of the tokens searched for whose KV was found.",
)
METRIC_KV_EVICTED_BLOCKS: Final = Metric(
    "counter",
    "slipstream_kv_evicted_blocks_total",
    "blocks",
    "Blocks that can be found no more, for want of room.",
)
METRIC_KV_RESERVED_BLOCKS: Final = Metric(
    "gauge",
    "slipstream_kv_reserved_blocks",
    "blocks",
    "Free or cached blocks that are promised to prompts being computed.",
)
METRIC_KV_SPILLED_BLOCKS: Final = Metric(
    "gauge",
    "slipstream_kv_spilled_blocks",
    "blocks",
    "Blocks in the file of the second tier.",
)
METRIC_KV_RESTORED_BLOCKS: Final = Metric(
    "counter",
    "slipstream_kv_restored_blocks_total",
    "blocks",
    "Blocks that came back from the file of the second tier.",
)
METRIC_KNOWN_BLOCKS: Final = Metric(
    "gauge",
    "slipstream_known_blocks",
    "blocks",
    "Blocks of each host's prefix cache that the scheduler knows of.",
    ("host_id",),
)
METRIC_PREFIX_RESYNCS: Final = Metric(
    "counter",
    "slipstream_prefix_resyncs_total",
    "questions",
    "Times that the scheduler asked a host for all the blocks it knows: events were missed, or it"
    " came late.",
)
METRIC_KV_LEASES: Final = Metric("gauge", "slipstream_kv_leases", "leases", "Leases alive.")
METRIC_KV_LEASE_AGE: Final = Metric(
    "gauge",
    "slipstream_kv_lease_age_seconds",
    "seconds",
    "Age of the oldest lease; 0 when there is none.",
)

# HTTP, at the gateway.
METRIC_HTTP_REQUESTS: Final = Metric(
    "counter",
    "slipstream_http_requests_total",
    "requests",
    "HTTP requests by endpoint and status; 499 where the client went before the end.",
    ("endpoint", "status"),
)
METRIC_HTTP_RUNNING: Final = Metric(
    "gauge",
    "slipstream_http_running",
    "requests",
    "HTTP requests for tokens that are being answered.",
)
METRIC_HTTP_TIME_TO_FIRST_BYTE: Final = Metric(
    "histogram",
    "slipstream_http_time_to_first_byte_seconds",
    "seconds",
    "Arrival of a streamed HTTP request to the first byte of its answer.",
    buckets=_SECONDS,
)
METRIC_HTTP_FIRST_FRAME: Final = Metric(
    "histogram",
    "slipstream_http_first_frame_seconds",
    "seconds",
    "First frame of a stream at the gateway to the first byte that leaves for it.",
    buckets=_SHORT_SECONDS,
)
METRIC_HTTP_DISCONNECTS: Final = Metric(
    "counter",
    "slipstream_http_disconnects_total",
    "requests",
    "HTTP requests whose client went before the end; each was cancelled.",
)
METRIC_HTTP_CUT_OFF: Final = Metric(
    "counter",
    "slipstream_http_cut_off_total",
    "requests",
    "HTTP requests whose client took nothing for too long; each was cancelled.",
)
METRIC_HTTP_DROPPED_FRAMES: Final = Metric(
    "counter",
    "slipstream_http_dropped_frames_total",
    "frames",
    "Frames that found no room beside a slow reader; they are asked for again.",
)

# The process itself. What else is called process_ comes with the Prometheus client.
METRIC_PROCESS_SWAP: Final = Metric(
    "gauge",
    "process_swap_bytes",
    "bytes",
    "Memory of this process that is swapped out, beside process_resident_memory_bytes.",
)
METRIC_PROCESS_CPU: Final = Metric(
    "counter",
    "process_cpu_seconds_total",
    "seconds",
    "Processor time of this process.",
)
METRIC_UPTIME: Final = Metric(
    "gauge",
    "slipstream_uptime_seconds",
    "seconds",
    "Time since this process began.",
)
METRIC_INFO: Final = Metric(
    "gauge",
    "slipstream_info",
    "processes",
    "Always 1; who this process is.",
    ("role", "worker_id", "version"),
)

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
