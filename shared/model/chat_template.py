"""Render chat messages through the model's Jinja template, as transformers does."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slipstream.shared.errors import InvalidRequestError, ModelError

# Far above any context length; a template that loops over its loops ends here.
_MAX_NUM_CHARACTERS = 1 << 23
_MAX_NUM_MESSAGES = 4096

Message = Mapping[str, Any]  # what a template may ask of a message is open-ended


class ChatTemplate:
    """A compiled template. Templates come with models: they run in a sandbox."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        try:
            parsed = _ENVIRONMENT.parse(source)
            self._template = _ENVIRONMENT.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template is broken: {error}") from error
        self._special_tokens = dict(special_tokens)
        self.knows_tools = "tools" in jinja2.meta.find_undeclared_variables(parsed)
        # How the model says that it calls a tool, as far as its template tells.
        self.marks_tool_calls = "<tool_call>" in source and "</tool_call>" in source

    def render(self, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> str:
        """Return the prompt that asks for an answer. Raises InvalidRequestError."""
        if len(messages) > _MAX_NUM_MESSAGES:
            raise InvalidRequestError(
                "messages", f"more than {_MAX_NUM_MESSAGES} of them", limit=_MAX_NUM_MESSAGES
            )
        # As transformers does: templates expect a missing key where an API writes null.
        present = [
            {key: value for key, value in message.items() if value is not None}
            for message in messages
        ]
        try:
            return self._collect(present, tools)
        except InvalidRequestError:
            raise
        except Exception as error:  # the template is foreign code: it may raise anything
            reason = str(error) or type(error).__name__
            raise InvalidRequestError("messages", reason) from error

    def _collect(self, messages: list[dict[str, Any]], tools: Sequence[Message] | None) -> str:
        pieces: list[str] = []
        num_characters = 0
        for piece in self._template.generate(
            messages=messages, tools=tools, add_generation_prompt=True, **self._special_tokens
        ):
            num_characters += len(piece)
            if num_characters > _MAX_NUM_CHARACTERS:
                limit = _MAX_NUM_CHARACTERS
                raise InvalidRequestError("messages", f"over {limit} characters", limit=limit)
            pieces.append(piece)
        return "".join(pieces)


class _GenerationBlock(jinja2.ext.Extension):
    """Lets `{% generation %}` through, which marks answers for training only."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)  # noqa: DTZ005 - templates want the local date


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates pass it by position or name
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - templates pass it so
) -> str:
    """Unlike Jinja's own filter, leave `<` and `&` as they are."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


_ENVIRONMENT = _make_environment()
