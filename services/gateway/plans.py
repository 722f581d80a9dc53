"""From a body to the requests that the scheduler is asked: one a prompt. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from slipstream.services.gateway.bodies import ChatBody, CompletionBody, GenerationBody
from slipstream.services.gateway.errors import invalid
from slipstream.services.gateway.tools import CALL_END, CallForm, ToolRequest, request_tools
from slipstream.shared.messages.generate import MAX_CHOICES, ChatMessage, GenerateRequest
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.model.tokenizer import Tokenizer

MAX_PROMPTS = 128
_DEADLINE_ROOM_S = 5.0  # what the word of a deadline that has passed may need to arrive

Kind = Literal["chat", "text"]

# Fields that a body and a request to the scheduler have alike.
_SAME = tuple(
    name
    for name in GenerationBody.__struct_fields__
    if name in GenerateRequest.__struct_fields__ and name not in ("stream", "model")
)
_WITHOUT_NUMBERS = ("messages", "prompt_token_ids", "stop")  # texts, or looked at already
_STRUCTURED = {"json": "guided_json", "regex": "guided_regex", "choice": "guided_choice"}


@dataclass(frozen=True)
class Asking:
    """What an HTTP request says beside its body."""

    request_id: str
    tenant: str | None = None  # of the key; None where no keys are configured


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to ask the scheduler, and how to answer the client."""

    kind: Kind
    requests: list[GenerateRequest]
    is_streamed: bool
    num_choices: int  # of each request
    has_usage: bool  # a chunk with it at the end
    has_usage_always: bool  # and in each chunk
    has_logprobs: bool = False
    # Texts or ids that are said again before the answer, one a request.
    echoed: list[str | list[int]] = field(default_factory=list)
    call_form: CallForm | None = None  # where calls of tools stand in an answer; None: nowhere

    @property
    def timeout_s(self) -> float | None:
        """How long the answer may take, where the client has said so."""
        deadline_ms = self.requests[0].deadline_ms
        if deadline_ms is None or deadline_ms <= 0:
            return None
        return deadline_ms / 1000 + _DEADLINE_ROOM_S


def plan_chat(body: ChatBody, asking: Asking, tokenizer: Tokenizer) -> Plan:
    """Return what a chat asks for. Raises ApiError."""
    if not body.messages:
        raise invalid("messages", "is empty; at least one message is needed")
    max_tokens = body.max_tokens
    if body.max_completion_tokens is not None:
        max_tokens = body.max_completion_tokens
    messages = [_with_known_role(message) for message in body.messages]
    tools = request_tools(body, messages, tokenizer)
    request = _request(
        body,
        asking,
        **_source_of(tools, body.stop),
        max_tokens=max_tokens,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
    )
    plan = _plan("chat", body, [request], has_logprobs=bool(body.logprobs))
    return replace(plan, call_form=tools.form)


def plan_completion(body: CompletionBody, asking: Asking) -> Plan:
    """Return what a completion asks for. Raises ApiError."""
    prompts = _prompts(body.prompt)
    has_logprobs = body.logprobs is not None and body.logprobs is not False
    if body.echo and body.stream and has_logprobs:
        raise invalid("echo", "is not supported with stream and logprobs; leave one of them out")
    requests = [
        _request(
            body,
            asking,
            **_source(prompt),
            logprobs=body.logprobs,
            # A stream says the prompt first: it can't wait for the scheduler's echo at the end.
            echo=body.echo if not body.stream else None,
        )
        for prompt in prompts
    ]
    plan = _plan("text", body, requests, has_logprobs=has_logprobs)
    return replace(plan, echoed=prompts) if body.echo else plan


def _plan(
    kind: Kind, body: GenerationBody, requests: list[GenerateRequest], *, has_logprobs: bool
) -> Plan:
    options = body.stream_options
    is_streamed = bool(body.stream)
    return Plan(
        kind=kind,
        requests=requests,
        is_streamed=is_streamed,
        num_choices=body.n or 1,
        has_usage=bool(options and options.include_usage),
        has_usage_always=bool(options and options.continuous_usage_stats),
        has_logprobs=has_logprobs,
    )


def _request(
    body: GenerationBody,
    asking: Asking,
    **fields: Any,  # Any: fields of every type
) -> GenerateRequest:
    # Before anything is made for each of them.
    if body.n is not None and not 1 <= body.n <= MAX_CHOICES:
        raise invalid("n", f"{body.n} is out of range; it must lie in [1, {MAX_CHOICES}]")
    same = {name: getattr(body, name) for name in _SAME}
    same |= _structured(body)
    if asking.tenant is not None:
        same["tenant"] = asking.tenant
    if body.client_request_id is None:
        same["client_request_id"] = asking.request_id
    _check_numbers(same | fields)
    # Always a stream: it alone can be cancelled, and is never too large for one message.
    return GenerateRequest(**(same | fields), model=body.model, stream=True)


def _check_numbers(fields: Mapping[str, Any]) -> None:
    """Refuse integers that JSON has and no message; the scheduler sees to all other limits."""
    for name, value in fields.items():
        if isinstance(value, int | list | dict) and name not in _WITHOUT_NUMBERS:
            try:
                msgspec.msgpack.encode(value)
            except OverflowError as error:
                raise invalid(name, "a number in it has more than 64 bits") from error


def _structured(body: GenerationBody) -> dict[str, Any]:
    """Return vLLM's newer way to say how an answer is constrained, in the older one's words."""
    given = {
        name: value for name, value in (body.structured_outputs or {}).items() if value is not None
    }
    for name in given:
        if name not in _STRUCTURED:
            known = ", ".join(_STRUCTURED)
            raise invalid(f"structured_outputs.{name[:64]}", f"is not supported; one of {known} is")
    try:
        return {
            _STRUCTURED[name]: msgspec.convert(value, _STRUCTURED_TYPES[name])
            for name, value in given.items()
        }
    except msgspec.ValidationError as error:
        raise invalid("structured_outputs", str(error)) from error


# Any: a JSON schema.
_STRUCTURED_TYPES: dict[str, Any] = {
    "json": dict[str, Any] | str,
    "regex": str,
    "choice": list[str],
}


def _with_known_role(message: ChatMessage) -> ChatMessage:
    """Call a developer a system, as the templates of open models do."""
    if message.role != "developer":
        return message
    return msgspec.structs.replace(message, role="system")


def _source_of(tools: ToolRequest, stop: str | list[str] | None) -> dict[str, Any]:
    """Return the fields that a chat with its tools sets."""
    fields: dict[str, Any] = {"messages": tools.messages}
    if tools.form == "marked_once":
        # What came after it would not be told. A stop string too many is refused by its name.
        given = [stop] if isinstance(stop, str) else stop or []
        fields["stop"] = [*given, CALL_END]
    if tools.prompt_token_ids is not None:
        fields["prompt_token_ids"] = PackedInts(tools.prompt_token_ids)
    if tools.guided_json is not None:
        # A response format that is here by now says only that the answer is text.
        fields |= {"guided_json": tools.guided_json, "response_format": None}
    return fields


def _source(prompt: str | list[int]) -> dict[str, Any]:
    if isinstance(prompt, str):
        return {"prompt": prompt}
    try:
        return {"prompt_token_ids": PackedInts(prompt)}
    except ValueError as error:
        raise invalid("prompt", str(error)) from error


def _prompts(prompt: str | Sequence[str | int | list[int]]) -> list[str | list[int]]:
    """Return each prompt by itself."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt", "is empty; at least one token is needed")
    if all(isinstance(each, int) for each in prompt):
        return [[each for each in prompt if isinstance(each, int)]]
    if len(prompt) > MAX_PROMPTS:
        raise invalid("prompt", f"{len(prompt)} prompts are above the limit of {MAX_PROMPTS}")
    texts: list[str | list[int]] = [each for each in prompt if isinstance(each, str)]
    ids: list[str | list[int]] = [each for each in prompt if isinstance(each, list)]
    if len(prompt) not in (len(texts), len(ids)):
        raise invalid("prompt", "texts and token ids are mixed; send one kind")
    if any(not each for each in texts or ids):
        raise invalid("prompt", "one of them is empty; at least one token is needed")
    return texts or ids
