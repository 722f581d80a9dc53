"""Tools: how the model is told of them, and how it is made to call one. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from slipstream.services.gateway.bodies import ChatBody
from slipstream.services.gateway.errors import invalid
from slipstream.shared.messages.generate import ChatMessage
from slipstream.shared.model.tokenizer import Tokenizer

# Any, here and below: tools, schemas and messages are JSON of the client's own making.
Json = dict[str, Any]

# Where calls stand in an answer: one is all of it, or between marks of the model's own, of which
# the first may be the last (`parallel_tool_calls: false`).
CallForm = Literal["whole", "marked", "marked_once"]
CALL_BEGIN, CALL_END = "<tool_call>", "</tool_call>"

MAX_TOOLS = 128
_CONSTRAINTS = ("response_format", "guided_json", "guided_regex", "guided_choice")
_TOLD = (
    "You can call these functions, one JSON schema a line:\n{schemas}\n"
    'Answer with a call and nothing else: {{"name": <function>, "arguments": <object>}}'
)
_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, kw_only=True)
class ToolRequest:
    """What to change in the request that the scheduler is asked."""

    form: CallForm | None  # None: no call will be looked for
    messages: list[ChatMessage] | None = None
    prompt_token_ids: list[int] | None = None  # where the model's template has a place for tools
    guided_json: Json | None = None


def request_tools(body: ChatBody, messages: list[ChatMessage], tokenizer: Tokenizer) -> ToolRequest:
    """Return how a chat with its tools is asked for. Raises ApiError and InvalidRequestError."""
    tools = [_function_of(tool, position) for position, tool in enumerate(body.tools or [])]
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"{len(tools)} tools are above the limit of {MAX_TOOLS}")
    wanted = _wanted(body, tools)
    if not wanted:
        return _history_only(messages, tokenizer)
    is_forced = body.tool_choice not in (None, "auto")
    if not is_forced and not tokenizer.marks_tool_calls:
        raise invalid(
            "tools",
            "the model's chat template knows no tools, so that it can't choose to call one; "
            'set tool_choice to "required", to a function, or to "none"',
        )
    if is_forced:
        _check_unconstrained(body)
    form = _form_of(body, is_forced=is_forced)
    guided_json = _call_schema(wanted) if is_forced else None
    if tokenizer.knows_tools:
        # With a forced one the model still sees the others: it was told of them before, maybe.
        ids = tokenizer.encode_chat([_for_template(each) for each in messages], body.tools)
        return ToolRequest(form=form, prompt_token_ids=ids, guided_json=guided_json)
    told = _with_told(messages, wanted)
    return ToolRequest(form=form, messages=_flat(told), guided_json=guided_json)


def _form_of(body: ChatBody, *, is_forced: bool) -> CallForm:
    if is_forced:
        return "whole"  # which is one call in any case
    return "marked_once" if body.parallel_tool_calls is False else "marked"


def _history_only(messages: list[ChatMessage], tokenizer: Tokenizer) -> ToolRequest:
    """Return a chat without tools, in which earlier calls and their results may stand."""
    if not any(each.tool_calls or each.tool_call_id is not None for each in messages):
        return ToolRequest(form=None, messages=messages)
    if tokenizer.knows_tools:
        ids = tokenizer.encode_chat([_for_template(each) for each in messages])
        return ToolRequest(form=None, prompt_token_ids=ids)
    return ToolRequest(form=None, messages=_flat(messages))


def _function_of(tool: Json, position: int) -> Json:
    """Return the function of a tool. Raises ApiError."""
    where = f"tools[{position}]"
    if tool.get("type", "function") != "function":
        kind = str(tool["type"])[:64]
        raise invalid(f"{where}.type", f"{kind!r} is not supported; a function is")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise invalid(f"{where}.function", "must be an object")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise invalid(f"{where}.function.name", "must be a name")
    if not isinstance(function.get("parameters"), dict | None):
        raise invalid(f"{where}.function.parameters", "must be a JSON schema")
    return function


def _wanted(body: ChatBody, functions: Sequence[Json]) -> list[Json]:
    """Return the functions that may be called. Raises ApiError."""
    choice = body.tool_choice
    if choice == "none" or (choice in (None, "auto") and not functions):
        return []
    if not functions:
        raise invalid("tool_choice", "there are no tools to choose from; send tools too")
    if choice in (None, "auto", "required"):
        return list(functions)
    name = _chosen_name(choice)
    named = [function for function in functions if function["name"] == name]
    if not named:
        raise invalid("tool_choice", f"there is no tool of the name {name[:64]!r}")
    return named[:1]


def _chosen_name(choice: Any) -> str:
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid(
            "tool_choice",
            'must be "none", "auto", "required" or '
            '{"type": "function", "function": {"name": NAME}}',
        )
    return name


def _check_unconstrained(body: ChatBody) -> None:
    for field in (*_CONSTRAINTS, "structured_outputs"):
        value = getattr(body, field)
        if value is not None and value != {"type": "text"}:
            raise invalid("tool_choice", f"{field} is given too, and an answer can't be both")


def _call_schema(functions: Sequence[Json]) -> Json:
    """Return what a call must look like; definitions move to where references find them."""
    definitions: Json = {}
    calls = [_one_call(function, str(idx), definitions) for idx, function in enumerate(functions)]
    schema = dict(calls[0]) if len(calls) == 1 else {"anyOf": calls}
    return {**schema, "$defs": definitions} if definitions else schema


def _one_call(function: Json, prefix: str, definitions: Json) -> Json:
    parameters = dict(function.get("parameters") or {"type": "object"})
    for key in ("$defs", "definitions"):
        for name, definition in (parameters.pop(key, None) or {}).items():
            definitions[f"{prefix}.{name}"] = _moved(definition, prefix)
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": _moved(parameters, prefix),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, prefix: str) -> Any:
    """Return a schema whose references name definitions by their new names."""
    if isinstance(schema, list):
        return [_moved(each, prefix) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, prefix) for key, value in schema.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str):
        for start in ("#/$defs/", "#/definitions/"):
            if reference.startswith(start):
                moved["$ref"] = f"#/$defs/{prefix}.{reference.removeprefix(start)}"
    return moved


def _with_told(messages: list[ChatMessage], functions: Sequence[Json]) -> list[ChatMessage]:
    """Tell of functions in words, in the system's message: the template has no place for them."""
    told = _TOLD.format(schemas="\n".join(_json(function).decode() for function in functions))
    first = messages[0]
    if first.role != "system":
        return [ChatMessage("system", told), *messages]
    system = msgspec.structs.replace(first, content=f"{_text_of(first)}\n\n{told}")
    return [system, *messages[1:]]


def _flat(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages in which calls and their results are text like any other."""
    return [
        ChatMessage(message.role, _flat_content(message), message.name)
        if message.tool_calls or message.tool_call_id is not None
        else message
        for message in messages
    ]


def _flat_content(message: ChatMessage) -> str:
    calls = [_json(_call_of(call)).decode() for call in message.tool_calls or []]
    return "\n".join(filter(None, (_text_of(message), *calls)))


def _text_of(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(part.text or "" for part in message.content or [])


def _call_of(call: Json) -> Json:
    function = call.get("function")
    if not isinstance(function, dict):
        raise invalid("messages", "a tool call without a function")
    return {"name": function.get("name"), "arguments": _arguments_of(function)}


def _arguments_of(function: Json) -> Any:
    """Return arguments as the object that they are the text of."""
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments  # whatever the model said


def _for_template(message: ChatMessage) -> Json:
    """Return a message as templates know it: text in one piece, arguments as an object."""
    found: Json = {"role": message.role, "content": _text_of(message)}
    if message.name is not None:
        found["name"] = message.name
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.get("id"), "type": "function", "function": _call_of(call)}
            for call in message.tool_calls
        ]
    return found
