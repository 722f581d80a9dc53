"""What clients send, as far as it is served; `fields.py` says what of the rest is refused."""

from typing import Any

import msgspec

from slipstream.shared.messages.common import LatencyClassName, Route
from slipstream.shared.messages.generate import ChatMessage


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream says beside its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that chats and completions share; the scheduler checks their ranges."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # Length and stopping.
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    # Sampling.
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: int | None = None
    best_of: int | None = None
    # Constrained output.
    response_format: dict[str, Any] | None = None  # Any: a JSON schema
    guided_json: dict[str, Any] | str | None = None  # Any: as above
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    structured_outputs: dict[str, Any] | None = None  # Any: the three above under other names
    # Service: fields of ours, see docs/operations.md.
    request_key: str | None = None
    tenant: str | None = None
    priority: int | None = None
    deadline_ms: int | None = None
    latency_class: LatencyClassName | None = None
    cache_salt: str | None = None
    adapter: str | None = None
    route: Route | None = None
    speculation: str | None = None
    speculation_mode: str | None = None
    num_speculative_tokens: int | None = None
    allow_other_numerics: bool | None = None
    client_request_id: str | None = None


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None  # Any: tools define their own shapes
    tool_choice: str | dict[str, Any] | None = None  # Any: as above
    parallel_tool_calls: bool | None = None


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    """POST /v1/completions. The prompt: a text, texts, the ids of one, the ids of several."""

    prompt: str | list[str | int | list[int]]
    logprobs: bool | int | None = None
    echo: bool | None = None


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tokenize: a prompt, or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = True


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]
