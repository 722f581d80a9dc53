"""What the command line offers, for people: help, options and errors that explain."""

from collections.abc import Sequence

import typer

from slipstream.services.cli.batch_command import batch
from slipstream.services.cli.bench_command import app as bench_app
from slipstream.services.cli.chat_command import chat
from slipstream.services.cli.dead_command import app as dead_app
from slipstream.services.cli.doctor_command import doctor
from slipstream.services.cli.eval_command import evaluate
from slipstream.services.cli.exit_codes import EPILOG
from slipstream.services.cli.generate_command import generate
from slipstream.services.cli.health_command import health
from slipstream.services.cli.keys_command import app as keys_app
from slipstream.services.cli.model_commands import app as model_app
from slipstream.services.cli.profile_command import profile
from slipstream.services.cli.result_command import result
from slipstream.services.cli.role_commands import add_role_commands
from slipstream.services.cli.roofline_command import roofline
from slipstream.services.cli.run_command import run
from slipstream.services.cli.simulate_command import simulate
from slipstream.services.cli.submit_command import submit
from slipstream.services.cli.top_command import top
from slipstream.services.cli.trace_command import trace
from slipstream.services.cli.up_command import up
from slipstream.services.cli.usage import UsageError
from slipstream.services.cli.workers_command import drain, workers

_HELP = """
Event-driven LLM inference over NATS: prefill and decode apart, one trace a request.

For example:

  slipstream run "What is the capital of France?"    everything in one shot

  slipstream up                                      a stack until Ctrl-C

  slipstream generate "Name three rivers"            ask a running stack

  slipstream chat                                    talk with it

  slipstream submit "Name three rivers"              have it answered whatever happens

  slipstream batch in.jsonl out.jsonl                a file of requests

  slipstream top                                     watch it work

  slipstream trace last                              where the time of a request went

  slipstream doctor                                  say what is wrong, and how to mend it

Every option of a service is also an environment variable, named in its help.
"""

app = typer.Typer(
    name="slipstream",
    help=_HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(up)
app.command()(generate)
app.command()(chat)
app.command()(submit)
app.command()(result)
app.command()(batch)
app.command()(health)
app.command()(top)
app.command()(doctor)
app.command()(trace)
app.command()(workers)
app.command()(drain)
app.command("eval")(evaluate)
app.command()(roofline)
app.command()(simulate)
app.command()(profile)
app.add_typer(bench_app, name="bench")
app.add_typer(dead_app, name="dead")
app.add_typer(model_app, name="model")
app.add_typer(keys_app, name="keys")
add_role_commands(app)


def run_app(arguments: Sequence[str]) -> int:
    """Run a command; return its exit status. Raises SlipstreamError, UsageError."""
    try:
        status = app(args=list(arguments), standalone_mode=False)
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except Exception as error:
        # Usage errors have no common class over typer's versions, only this method.
        describe = getattr(error, "format_message", None)
        if describe is None:
            raise
        raise UsageError(describe(), getattr(error, "exit_code", 2)) from error
    return status if isinstance(status, int) else 0
