"""`slipstream profile`: what the time of a token goes into."""

from typing import Annotated

import typer

from slipstream.services.cli.option_groups import with_options
from slipstream.services.cli.profile_options import ProfileOptions
from slipstream.services.cli.stack_options import StackOptions

_DEFAULTS = ProfileOptions()
_STACK = StackOptions()


@with_options
def profile(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- bench ...]",
            help="A command of slipstream whose stacks are looked at as long as it runs.",
        ),
    ] = None,
    options: ProfileOptions = _DEFAULTS,
    stack: StackOptions = _STACK,
) -> None:
    """
    Say what the time of a token goes into, and that of each service.

    Waiting, weights, KV, other arithmetic, sampling and text, messages: from counters that every
    process keeps, so that looking costs nothing. Asked are those of a running stack, or those
    of one that is started under a --load, or those that a command starts.

    For example:

      slipstream profile --seconds 10

      slipstream profile --load streams=8 --json profile.json

      slipstream profile -- bench serve --streams 8 --seconds 10 --rounds 1
    """
    from slipstream.services.cli.profile_run import run_profile  # noqa: PLC0415 - keeps --help quick

    run_profile(options, stack, command or [])
