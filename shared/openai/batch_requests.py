"""What a body of the OpenAI API asks for, as a request of ours. Pure."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from slipstream.shared.errors import InvalidRequestError
from slipstream.shared.messages.codec import decode_request
from slipstream.shared.messages.generate import GenerateRequest
from slipstream.shared.openai.fields import IGNORED, REFUSED, is_refused

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]
ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)
CHAT: Endpoint = "/v1/chat/completions"

# Any: JSON of every shape
Body = Mapping[str, Any]

# What the API calls otherwise. `max_tokens` is its old name, and gives way, as over HTTP.
_RENAMED = {"max_completion_tokens": "max_tokens"}

# Besides what HTTP takes and does not use: says something of streams, and of tools, which a batch
# has not.
_WITHOUT_EFFECT = IGNORED | {"parallel_tool_calls", "stream_options"}
# What the batch decides by itself, or the other endpoint takes.
_NOT_IN_A_BODY = frozenset({"prompt_token_ids", "request_key"})
_FIELDS = frozenset(GenerateRequest.__struct_fields__) - _NOT_IN_A_BODY


def request_of(endpoint: Endpoint, body: Body) -> GenerateRequest:
    """Return the request of a body. Raises InvalidRequestError, which names the field."""
    # Clients write null for what they leave open.
    given = {name: value for name, value in body.items() if value is not None}
    refused = next((name for name, value in given.items() if is_refused(name, value)), None)
    if refused is not None:
        raise InvalidRequestError(refused, "is not supported; leave it out")
    unused = _WITHOUT_EFFECT | REFUSED.keys()
    fields = _renamed({name: each for name, each in given.items() if name not in unused})
    unknown = next((name for name in fields if name not in _FIELDS), None)
    if unknown is not None:
        raise InvalidRequestError(unknown, f"is no field of {endpoint} here; leave it out")
    if fields.pop("stream", False) is not False:
        raise InvalidRequestError("stream", "is true; a batch is answered in whole: leave it out")
    _check_source(endpoint, fields)
    if endpoint != CHAT:
        fields |= _prompt_fields(fields.pop("prompt"))
    return decode_request(msgspec.json.encode(fields))


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:  # Any: as above
    for name, ours in _RENAMED.items():
        if name not in fields:
            continue
        fields[ours] = fields.pop(name)
    return fields


def _check_source(endpoint: Endpoint, fields: Body) -> None:
    wanted, other = ("messages", "prompt") if endpoint == CHAT else ("prompt", "messages")
    if other in fields:
        raise InvalidRequestError(other, f"is not for {endpoint}, which takes {wanted}")
    if wanted not in fields:
        raise InvalidRequestError(wanted, f"is missing; {endpoint} needs it")


def _prompt_fields(prompt: Any) -> Body:  # Any: as above
    """Return text or token ids: the API also takes lists of either, of which one entry can be."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise InvalidRequestError(
                "prompt", f"holds {len(prompt)} prompts; give each a line of its own"
            )
        (prompt,) = prompt
    return {"prompt_token_ids": prompt} if isinstance(prompt, list) else {"prompt": prompt}
