"""Options that several commands share: a dataclass whose fields are typer options."""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """
    Replace each parameter whose type is a dataclass by its fields, one option each.

    The parameter's default, an instance, gives the options' defaults.
    """
    parameters = inspect.signature(command).parameters
    groups = {name: each for name, each in parameters.items() if _is_group(each)}

    @functools.wraps(command)
    def expanded(**values: Any) -> None:  # Any: option values of every type
        for name, parameter in groups.items():
            fields = dataclasses.fields(parameter.annotation)
            values[name] = parameter.annotation(**{f.name: values.pop(f.name) for f in fields})
        command(**values)

    flat = [
        option
        for name, each in parameters.items()
        for option in (_options_of(each) if name in groups else [each])
    ]
    expanded.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined] # typer reads it
    expanded.__annotations__ = {each.name: each.annotation for each in flat}
    return expanded


def _is_group(parameter: inspect.Parameter) -> bool:
    return dataclasses.is_dataclass(parameter.annotation)


def _options_of(group: inspect.Parameter) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group.annotation, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(group.default, field.name),
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group.annotation)
    ]
