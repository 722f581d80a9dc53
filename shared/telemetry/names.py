"""Every name of traces: services, spans, attributes, events. Those of metrics: `metric_names.py`.

`messaging.*` and `gen_ai.*` follow the OpenTelemetry conventions. They are copied because those
conventions still move and the constants of the Python package are marked deprecated. What the
conventions have no word for is ours and begins with `slipstream.`.
"""

from typing import Final

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
