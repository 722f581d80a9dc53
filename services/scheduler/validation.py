"""Check every field of a request before any work, and say which one is wrong and what it may be."""

import math
from collections.abc import Sequence
from typing import get_args

from slipstream.shared.bus.subjects import is_inbox
from slipstream.shared.config import Speculation
from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.messages.generate import (
    MAX_CHOICES,
    ChatMessage,
    ContentPart,
    GenerateRequest,
)
from slipstream.shared.messages.submission import MAX_KEY_CHARACTERS

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 512
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIASES = 1024
MAX_LOGPROBS = 20
MAX_SEED = 2**63 - 1

# Understood, and not served by this version: refused, for nothing is ever ignored in silence.
_UNSUPPORTED = (
    "tools",
    "adapter",
)
_SPECULATION = get_args(Speculation)


def check_fields(
    request: GenerateRequest,
    vocab_size: int,
    max_context_length: int,
    *,
    is_submitted: bool = False,
) -> None:
    """Raise InvalidRequestError for the first field that can't be served as it stands."""
    _check_unsupported(request)
    if is_submitted:
        _check_submitted(request)
    elif request.request_key is not None:
        raise InvalidRequestError("request_key", "is for submitted requests; leave it out")
    _check_source(request)
    _check_choices(request)
    _check_length(request, max_context_length)
    _check_sampling(request)
    _check_speculation(request)
    _check_stops(request, vocab_size)
    _check_bias(request, vocab_size)
    _check_returned(request)
    _check_service(request)


def check_token_ids(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Refuse ids that the model doesn't know."""
    for position, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                field,
                f"token id {token_id} at position {position} is outside the vocabulary "
                f"(0 to {vocab_size - 1})",
                limit=vocab_size - 1,
            )


def plain_messages(messages: Sequence[ChatMessage]) -> list[dict[str, str]]:
    """Return chat messages as the template takes them: parts of text joined."""
    return [
        {"role": message.role, "content": _text_of(message, position)}
        for position, message in enumerate(messages)
    ]


def _text_of(message: ChatMessage, position: int) -> str:
    where = f"messages[{position}]"
    if message.tool_calls or message.tool_call_id is not None:
        raise InvalidRequestError(f"{where}.tool_calls", "tools are not supported")
    if message.content is None:
        raise InvalidRequestError(f"{where}.content", "is missing")
    if isinstance(message.content, str):
        return message.content
    return "".join(_part_text(part, where) for part in message.content)


def _part_text(part: ContentPart, where: str) -> str:
    if part.type != "text" or part.text is None:
        raise InvalidRequestError(
            f"{where}.content", f"parts of type {part.type!r} are not supported; send text"
        )
    return part.text


def _check_unsupported(request: GenerateRequest) -> None:
    for field in _UNSUPPORTED:
        if getattr(request, field) not in (None, False):
            raise InvalidRequestError(field, "is not supported by this version; leave it out")
    if request.tool_choice not in (None, "none"):
        raise InvalidRequestError("tool_choice", "is not supported by this version; leave it out")


def _check_submitted(request: GenerateRequest) -> None:
    if request.stream:
        raise InvalidRequestError(
            "stream",
            "a submitted request is answered in one piece, in the bucket of results; leave it out",
        )
    key = request.request_key
    if key == "":
        raise InvalidRequestError("request_key", "is empty; leave it out, or name the request")
    _check_count("request_key", len(key or ""), MAX_KEY_CHARACTERS, "characters")


def _check_choices(request: GenerateRequest) -> None:
    _check_number("n", request.n, 1, MAX_CHOICES)
    num_choices = request.n or 1
    if request.best_of not in (None, num_choices):
        raise InvalidRequestError(
            "best_of",
            f"{request.best_of} is not supported; leave it out, or make it n ({num_choices})",
            limit=num_choices,
        )


def _check_source(request: GenerateRequest) -> None:
    given = [
        field
        for field in ("prompt", "messages", "prompt_token_ids")
        if getattr(request, field) is not None
    ]
    if not given:
        raise InvalidRequestError(
            "prompt", "is missing; send one of prompt, messages and prompt_token_ids"
        )
    if len(given) > 1:
        raise InvalidRequestError(
            given[1], f"{given[0]} is given too; send one of prompt, messages and prompt_token_ids"
        )
    if not getattr(request, given[0]):
        raise InvalidRequestError(given[0], "is empty; at least one token is needed")


def _check_length(request: GenerateRequest, max_context_length: int) -> None:
    _check_number("max_tokens", request.max_tokens, 1, max_context_length)
    _check_number("min_tokens", request.min_tokens, 0, max_context_length)
    if (
        request.max_tokens is not None
        and request.min_tokens is not None
        and request.min_tokens > request.max_tokens
    ):
        raise InvalidRequestError(
            "min_tokens",
            f"{request.min_tokens} is above max_tokens ({request.max_tokens})",
            limit=request.max_tokens,
        )


def _check_sampling(request: GenerateRequest) -> None:
    _check_number("temperature", request.temperature, 0, 2)
    _check_number("top_p", request.top_p, 0, 1)
    _check_number("top_k", request.top_k, -1, 2**31 - 1)
    _check_number("min_p", request.min_p, 0, 1)
    _check_number("repetition_penalty", request.repetition_penalty, 0.01, 10)
    _check_number("presence_penalty", request.presence_penalty, -2, 2)
    _check_number("frequency_penalty", request.frequency_penalty, -2, 2)
    _check_number("seed", request.seed, -MAX_SEED - 1, MAX_SEED)


def _check_speculation(request: GenerateRequest) -> None:
    if request.speculation not in (None, *_SPECULATION):
        kinds = " or ".join(f'"{kind}"' for kind in _SPECULATION)
        raise InvalidRequestError("speculation", f"must be {kinds}")
    _check_number("num_speculative_tokens", request.num_speculative_tokens, 0, 64)
    if request.speculation_mode not in (None, "exact", "rejection"):
        raise InvalidRequestError("speculation_mode", 'must be "exact" or "rejection"')
    if request.speculation_mode != "rejection":
        return
    for field, value in (("speculation", "off"), ("num_speculative_tokens", 0)):
        if getattr(request, field) == value:
            raise InvalidRequestError(
                "speculation_mode",
                f'"rejection" decides about drafts, and {field} {value!r} has none; leave one out',
            )


def _check_stops(request: GenerateRequest, vocab_size: int) -> None:
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    _check_count("stop", len(stops), MAX_STOP_STRINGS)
    for stop in stops:
        if not stop:
            raise InvalidRequestError("stop", "an empty stop string would match everywhere")
        if len(stop) > MAX_STOP_CHARACTERS:
            raise InvalidRequestError(
                "stop",
                f"a stop string of {len(stop)} characters is above the limit of "
                f"{MAX_STOP_CHARACTERS}",
                limit=MAX_STOP_CHARACTERS,
            )
    _check_count("stop_token_ids", len(request.stop_token_ids or []), MAX_STOP_TOKEN_IDS)
    check_token_ids("stop_token_ids", request.stop_token_ids or [], vocab_size)


def _check_bias(request: GenerateRequest, vocab_size: int) -> None:
    biases = request.logit_bias or {}
    _check_count("logit_bias", len(biases), MAX_LOGIT_BIASES)
    for key, value in biases.items():
        if not key.isascii() or not key.isdecimal():
            raise InvalidRequestError("logit_bias", f"{key[:32]!r} is no token id")
        check_token_ids("logit_bias", [int(key[:20])], vocab_size)
        _check_number("logit_bias", value, -100, 100)


def _check_returned(request: GenerateRequest) -> None:
    if not isinstance(request.logprobs, bool):
        _check_number("logprobs", request.logprobs, 0, MAX_LOGPROBS)
    _check_number("top_logprobs", request.top_logprobs, 0, MAX_LOGPROBS)
    _check_number("prompt_logprobs", request.prompt_logprobs, 0, MAX_LOGPROBS)
    if request.top_logprobs is not None and request.logprobs in (None, False):
        raise InvalidRequestError("top_logprobs", "needs logprobs: true")


def _check_service(request: GenerateRequest) -> None:
    _check_number("priority", request.priority, -100, 100)
    for field in ("tenant", "cache_salt", "client_request_id"):
        value = getattr(request, field)
        _check_count(field, len(value or ""), MAX_KEY_CHARACTERS, "characters")
    if request.batch_inbox is not None and not is_inbox(request.batch_inbox):
        raise InvalidRequestError("batch_inbox", "must be an inbox of the client's own")


def _check_number(field: str, value: float | None, low: float, high: float) -> None:
    if value is None or low <= value <= high:  # also false for NaN
        return
    is_low = math.isfinite(value) and value < low
    raise InvalidRequestError(
        field,
        f"{value} is out of range; it must lie in [{low}, {high}]",
        limit=low if is_low else high,
    )


def _check_count(field: str, count: int, limit: int, what: str = "entries") -> None:
    if count > limit:
        raise InvalidRequestError(
            field, f"{count} {what} are above the limit of {limit}", limit=limit
        )
