"""What clients send and receive: requests, streams and endings."""

from typing import Any

import msgspec

from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import (
    FinishReason,
    LatencyClassName,
    Message,
    Phase,
    Route,
    Timings,
    Usage,
)
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import TokenLogprobs

MAX_CHOICES = 16  # of one request


class ContentPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part of a message's content; only `text` parts can be served."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None  # Any: tools define their own shapes


class GenerateRequest(Message, frozen=True):
    """
    Ask for tokens. Exactly one of `prompt`, `messages` and `prompt_token_ids` is given.

    Absent fields take the model's defaults. Ranges are checked by the scheduler's admission, which
    names the field and the limit; here stand only the types.
    """

    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    prompt_token_ids: PackedInts | None = None
    model: str | None = None
    stream: bool = False
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
    # What is returned.
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    echo: bool | None = None
    prompt_logprobs: int | None = None
    # Constrained output and tools.
    response_format: dict[str, Any] | None = None  # Any: a JSON schema
    guided_json: dict[str, Any] | str | None = None  # Any: as above
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    tools: list[dict[str, Any]] | None = None  # Any: as above
    tool_choice: str | dict[str, Any] | None = None  # Any: as above
    # Service.
    request_key: str | None = None
    tenant: str | None = None
    priority: int | None = None
    deadline_ms: int | None = None
    cache_salt: str | None = None
    adapter: str | None = None
    route: Route | None = None
    speculation: str | None = None  # "off", or a kind of draft
    num_speculative_tokens: int | None = None
    allow_other_numerics: bool | None = None
    client_request_id: str | None = None  # echoed in logs, never a key
    latency_class: LatencyClassName | None = None  # who goes first, and is refused how soon
    speculation_mode: str | None = None  # "exact" or "rejection"
    # An inbox of a client with many streams: frames of a step may come there as one FrameBatch.
    batch_inbox: str | None = None


class TokenFrame(Message, frozen=True, tag="token_frame"):
    """
    Tokens of one request and engine step. Delivery is at least once: readers cut by index.

    A frame without tokens is the keep-alive. In msgpack it travels as an array (`codec.py`), so
    fields are only ever appended, with a default.
    """

    request_id: RequestId
    attempt: int
    index: int  # output position of the first token
    text_offset: int  # characters before this frame
    token_ids: PackedInts
    text: str
    choice: int = 0
    logprobs: list[TokenLogprobs] | None = None


class FrameBatch(msgspec.Struct, frozen=True, array_like=True, tag="frame_batch"):
    """All frames of one engine step that go to one gateway; each is an encoded message."""

    frames: list[msgspec.Raw]


class AddressedFrame(msgspec.Struct, frozen=True, array_like=True, tag="addressed_frame"):
    """A frame within a batch, and in whose box it belongs: the last token of its reply subject."""

    box: str
    frame: msgspec.Raw


class EchoedPrompt(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """
    The prompt as the model saw it, and what it thought of each of its tokens.

    `logprobs` has an entry a token, None for the first: nothing comes before it.
    """

    token_ids: PackedInts
    text: str = ""
    logprobs: list[TokenLogprobs | None] | None = None


class Finished(Message, frozen=True, tag="finished"):
    """The one ending of a request that was served (also when it was cancelled: `abort`)."""

    request_id: RequestId
    attempt: int
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    num_tokens: int  # indices 0 .. num_tokens - 1 were sent
    text_length: int  # characters in all
    choice: int = 0
    seed: int | None = None
    stop_reason: str | int | None = None  # the stop string or token id that matched
    model: str | None = None
    route: Route | None = None  # the one taken
    route_reason: str | None = None
    numerics: str | None = None  # numerics class: format, KV format, ISA class, kernel version
    trace_id: str | None = None
    prompt: EchoedPrompt | None = None  # with `echo` or `prompt_logprobs`


class Choice(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One answer of a request that was not streamed."""

    text: str
    token_ids: PackedInts
    finish_reason: FinishReason
    index: int = 0
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] | None = None
    seed: int | None = None  # with it this choice can be had alone


class Completion(Message, frozen=True, tag="completion"):
    """The whole answer in one message, for `stream: false`."""

    request_id: RequestId
    attempt: int
    choices: list[Choice]
    usage: Usage
    timings: Timings
    seed: int | None = None
    model: str | None = None
    route: Route | None = None
    route_reason: str | None = None
    numerics: str | None = None
    trace_id: str | None = None
    prompt: EchoedPrompt | None = None


# The reason of a cancel between services whose sender goes on with the request, or answers the
# client itself: the worker lets go without an ending of its own.
REPLACED = "replaced"


class Cancel(Message, frozen=True, tag="cancel"):
    """End a request, whatever its phase. Idempotent. `attempt` is set between services only."""

    request_id: RequestId
    attempt: int | None = None
    reason: str = "client"
    scheduler_epoch: int = 0  # as in `AttemptMessage`


class Cancelled(Message, frozen=True, tag="cancelled"):
    """Answer to `Cancel`: the phase it met. `was_ended_here` says who sends the client's ending."""

    request_id: RequestId
    phase: Phase = "unknown"
    was_ended_here: bool = False


class Resume(Message, frozen=True, tag="resume"):
    """Send the stream again from an index, or its ending, to `reply`."""

    request_id: RequestId
    reply: str
    from_index: int = 0
    choice: int = 0
    scheduler_epoch: int = 0  # as in `AttemptMessage`
    max_num_tokens: int | None = None  # of what is sent again; the reader asks for the rest
