"""The command line `slipstream`: what it offers, and how its errors look."""

import sys
from collections.abc import Sequence

import typer

from slipstream.services.cli.bench_command import app as bench_app
from slipstream.services.cli.eval_command import evaluate
from slipstream.services.cli.generate_command import generate
from slipstream.services.cli.health_command import health
from slipstream.services.cli.model_commands import app as model_app
from slipstream.services.cli.role_commands import add_role_commands
from slipstream.services.cli.roofline_command import roofline
from slipstream.services.cli.run_command import run
from slipstream.services.cli.up_command import up
from slipstream.shared.errors import SlipstreamError

_HELP = """
Event-driven LLM inference over NATS: prefill and decode apart, one trace a request.

For example:

  slipstream run "What is the capital of France?"    everything in one shot

  slipstream up                                      a stack until Ctrl-C

  slipstream generate "Name three rivers"            ask a running stack

Every option of a service is also an environment variable, named in its help.
"""
_INTERRUPTED = 130

app = typer.Typer(
    name="slipstream",
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(up)
app.command()(generate)
app.command()(health)
app.command("eval")(evaluate)
app.command()(roofline)
app.add_typer(bench_app, name="bench")
app.add_typer(model_app, name="model")
add_role_commands(app)


def main() -> None:
    """Run a command and end the process with its status."""
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Run a command; an error is one line that says what is wrong and how to mend it."""
    try:
        status = app(args=list(arguments), standalone_mode=False)
    except SlipstreamError as error:
        return _fail(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; there is nobody to tell.
        sys.stderr.close()
        return 1
    except Exception as error:
        # Usage errors have no common class over typer's versions, only this method.
        describe = getattr(error, "format_message", None)
        if describe is None:
            raise
        message = describe()
        status = getattr(error, "exit_code", 2)
        # Without a command the help was printed, and nothing is wrong.
        return _fail(f"{message} (see slipstream --help)", status) if message else 0
    return status if isinstance(status, int) else 0


def _fail(message: str, status: int) -> int:
    print(f"slipstream: {message}", file=sys.stderr)  # noqa: T201 - this is the console
    return status


if __name__ == "__main__":
    main()
