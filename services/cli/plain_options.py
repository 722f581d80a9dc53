"""
Options of a service without the library for command lines, which a worker would hold for good.

What is not plain (help, an unknown option, a value of the wrong kind) is left to the library, which
explains.
"""

import contextlib
import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from slipstream.services.cli.settings import (
    PARENT,
    PREFIX,
    Option,
    options_of,
    variable_of,
)
from slipstream.shared.config import ServiceConfig

_YES = frozenset(("1", "true", "t", "yes", "y", "on"))
_NO = frozenset(("0", "false", "f", "no", "n", "off"))

Values = dict[str, Any]  # Any: option values of every type


def read_plainly(
    config_class: type[ServiceConfig], arguments: Sequence[str], environment: Mapping[str, str]
) -> Values | None:
    """Return the value of each option as the library would; None where that is for it to say."""
    options = [*options_of(config_class), Option(PARENT, int | None, None)]
    with contextlib.suppress(ValueError):
        given = dict(_given(options, arguments))
        return {each.name: _value(each, given, environment) for each in options}
    return None


def _given(options: Sequence[Option], arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield field and text of what stands on the command line. Raises ValueError."""
    by_flag = {flag: option for option in options for flag in _flags(option)}
    rest = iter(arguments)
    for argument in rest:
        flag, has_value, text = argument.partition("=")
        option = by_flag.get(flag)
        if option is None:
            raise ValueError(argument)
        if option.is_flag:
            if has_value:
                raise ValueError(argument)
            text = "yes" if flag == option.flags[0] else "no"
        elif not has_value:
            text = next(rest, "-")
            if text.startswith("-"):
                raise ValueError(argument)
        yield option.name, text


def _flags(option: Option) -> tuple[str, ...]:
    return ("--parent-pid",) if option.name == PARENT else option.flags


def _value(option: Option, given: Mapping[str, str], environment: Mapping[str, str]) -> Any:
    """Return what is given, else what the environment says, else the default. Any: as above."""
    variable = f"{PREFIX}PARENT_PID" if option.name == PARENT else variable_of(option.name)
    # Like the library: a variable that is set to nothing counts as none.
    text = given.get(option.name, environment.get(variable) or None)
    if text is not None:
        return _converted(text, option.hint)
    if option.default is dataclasses.MISSING:
        raise ValueError(option.name)
    return option.default


def _converted(text: str, hint: Any) -> Any:
    """Return the value of a text. Raises ValueError. Any: as above."""
    if isinstance(hint, types.UnionType):
        (hint,) = (each for each in typing.get_args(hint) if each is not types.NoneType)
    if typing.get_origin(hint) is Literal:
        if text not in typing.get_args(hint):
            raise ValueError(text)
        return text
    if hint is bool:
        if text.lower() not in _YES | _NO:
            raise ValueError(text)
        return text.lower() in _YES
    assert hint in (str, int, float, Path), f"no plain form for {hint}"
    return hint(text)
