"""
The entry point of the command line `slipstream`, and how its errors look.

A service starts from here without the library for command lines: see `plain_options.py`.
"""

import os
import sys
from collections.abc import Sequence

from slipstream.services.cli.plain_options import read_plainly
from slipstream.services.cli.roles import ROLE_COMMANDS, run_role
from slipstream.services.cli.settings import PARENT, build
from slipstream.services.cli.usage import UsageError
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.telemetry.plain_structlog import import_structlog

_INTERRUPTED = 130


def main() -> None:
    """Run a command and end the process with its status."""
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Run a command; an error is one line that says what is wrong and how to mend it."""
    try:
        status = _run_service(arguments)
        return _run_app(arguments) if status is None else status
    except UsageError as error:
        # Without a command the help was printed, and nothing is wrong.
        message = str(error)
        return _fail(f"{message} (see slipstream --help)", error.status) if message else 0
    except SlipstreamError as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; there is nobody to tell.
        sys.stderr.close()
        return 1


def _run_service(arguments: Sequence[str]) -> int | None:
    """Run the service that is asked for; None where something else is, or has to be explained."""
    wanted = next((each for each in ROLE_COMMANDS if list(arguments[:1]) == [each.role]), None)
    if wanted is None:
        return None
    values = read_plainly(wanted.config_class, arguments[1:], os.environ)
    if values is None:
        return None
    import_structlog()
    # Imported now: it logs.
    from slipstream.shared.lifecycle import end_with_parent  # noqa: PLC0415 - a service starts without it

    end_with_parent(values.pop(PARENT))
    return run_role(wanted.folder, build(wanted.config_class, values))


def _run_app(arguments: Sequence[str]) -> int:
    # Imported now: the other commands and their library take 20 MB, which a service would keep.
    from slipstream.services.cli.commands import run_app  # noqa: PLC0415 - a service starts without it

    return run_app(arguments)


def _fail(message: str, status: int) -> int:
    print(f"slipstream: {message}", file=sys.stderr)  # noqa: T201 - this is the console
    return status


if __name__ == "__main__":
    main()
