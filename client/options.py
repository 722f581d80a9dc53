"""What may be asked for besides the prompt, and the request that it makes. Pure."""

import difflib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import msgspec

from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.messages.common import LatencyClassName, Route
from slipstream.shared.messages.generate import ChatMessage, GenerateRequest
from slipstream.shared.messages.packed import PackedInts

# Any: a message may hold parts.
ChatTurn = Mapping[str, Any]
Prompt = str | Sequence[int]
Question = str | Sequence[int] | Sequence[ChatTurn]

_NUM_SEEDS = 2**53  # what every JSON reader keeps exactly


class Options(TypedDict, total=False):
    """
    Fields of a request. What is left out is the model's default.

    They mean what they mean on the wire, and their ranges are checked by the server, which names
    field and limit.
    """

    model: str
    # Length and stopping.
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop: str | list[str]
    stop_token_ids: list[int]
    skip_special_tokens: bool
    # Sampling.
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: dict[str, float]
    seed: int
    # Constrained output.
    response_format: dict[str, Any]  # Any: a JSON schema
    guided_json: dict[str, Any] | str  # Any: as above
    guided_regex: str
    guided_choice: list[str]
    # Service.
    tenant: str
    priority: int
    latency_class: LatencyClassName
    cache_salt: str
    route: Route
    speculation: str
    num_speculative_tokens: int
    speculation_mode: Literal["exact", "rejection"]


def request_of(question: Question, options: Options) -> GenerateRequest:
    """
    Return the request for a text, token ids or chat messages.

    Raises TypeError for an unknown option, InvalidRequestError for what is no chat message.
    """
    _check_names(options)
    return GenerateRequest(**_source(question), **options)


def with_seed(request: GenerateRequest) -> GenerateRequest:
    """Return the request with a seed, so that a repeat of it gives the same tokens."""
    if request.seed is not None:
        return request
    return msgspec.structs.replace(request, seed=secrets.randbelow(_NUM_SEEDS))


def _check_names(options: Options) -> None:
    for name in options:
        if name not in Options.__annotations__:
            close = difflib.get_close_matches(name, Options.__annotations__, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"unknown option {name!r}{hint}")


def _source(question: Question) -> dict[str, Any]:  # Any: fields of different types
    if isinstance(question, str):
        return {"prompt": question}
    if isinstance(question, bytes) or not isinstance(question, Sequence):
        raise TypeError(
            "a prompt is a str, a list of token ids or a list of chat messages, "
            f"not {type(question).__name__}"
        )
    if question and all(isinstance(each, int) for each in question):
        return {"prompt_token_ids": _packed(question)}
    return {"messages": _messages(question)}


def _packed(token_ids: Sequence[Any]) -> PackedInts:  # Any: integers, as was just seen
    try:
        return PackedInts(token_ids)
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError("prompt_token_ids", str(error)) from error


def _messages(turns: Sequence[Any]) -> list[ChatMessage]:  # Any: checked here
    try:
        return msgspec.convert(turns, list[ChatMessage])
    except msgspec.ValidationError as error:
        raise InvalidRequestError("messages", str(error)) from error
