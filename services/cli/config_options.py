"""Every field of a service's configuration as an option with an environment variable."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from slipstream.services.cli.settings import (
    PARENT,
    PREFIX,
    SETTINGS,
    ConfigT,
    Option,
    build,
    options_of,
    variable_of,
)
from slipstream.shared.lifecycle import end_with_parent


def command_for(config_class: type[ConfigT], run: Callable[[ConfigT], None]) -> Callable[..., None]:
    """Return a function with one option a field, which builds the configuration and runs it."""

    def command(**values: Any) -> None:  # Any: option values of every type
        end_with_parent(values.pop(PARENT))
        run(build(config_class, values))

    parameters = [_parameter(option) for option in options_of(config_class)]
    parameters.append(_parent_parameter())
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _parameter(option: Option) -> inspect.Parameter:
    names = ["/".join(option.flags)] if option.is_flag else option.flags
    described = typer.Option(
        *names,
        envvar=variable_of(option.name),
        help=SETTINGS[option.name].help,
        show_default=option.default is not None,
    )
    is_required = option.default is dataclasses.MISSING
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if is_required else option.default,
        annotation=Annotated[option.hint, described],
    )


def _parent_parameter() -> inspect.Parameter:
    option = typer.Option("--parent-pid", envvar=f"{PREFIX}PARENT_PID", hidden=True)
    return inspect.Parameter(
        PARENT,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[int | None, option],
    )
