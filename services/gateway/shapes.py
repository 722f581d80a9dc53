"""What the gateway answers: OpenAI's shapes, with fields of ours at their ends."""

from typing import Literal

import msgspec

from slipstream.services.gateway.journeys import Journey

FinishReason = Literal["stop", "length", "tool_calls"]


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, and with which field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """Every error."""

    error: ErrorDetail


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Of the prompt's tokens those whose KV was there already."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Tokens that were drafted: those the model agreed with, and those it did not."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = PromptTokensDetails()
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails()


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that might have come."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    """A token of a chat's answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """The tokens of a chat's answer."""

    content: list[ChatLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """The tokens of a completion, column by column."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class FunctionCall(msgspec.Struct, frozen=True):
    """A function with its arguments, which are JSON in a string."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model wants made."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the assistant says."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a chat. With its `seed` it can be had again."""

    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    seed: int | None = None


class TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation of a prompt. With its `seed` it can be had again."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    seed: int | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer of a chat."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    service_tier: Literal["default"] = "default"
    seed: int | None = None
    slipstream: Journey | None = None


class TextCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer of a completion."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    system_fingerprint: str
    seed: int | None = None
    slipstream: Journey | None = None


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "slipstream"
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All models that are served."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """A text in tokens."""

    count: int
    max_model_len: int
    tokens: list[int]


class Text(msgspec.Struct, frozen=True):
    """Tokens as text."""

    prompt: str


class Health(msgspec.Struct, frozen=True):
    """Whether the gateway lives."""

    status: Literal["ok"] = "ok"


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether requests can be served, and who for it is there."""

    is_ready: bool
    scheduler: bool
    decode_worker: bool


class Version(msgspec.Struct, frozen=True):
    """Which Slipstream this is."""

    version: str
