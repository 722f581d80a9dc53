"""`slipstream generate`: the client of a running stack."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.services.cli.connection import NatsUrl, answered, connected
from slipstream.services.cli.console import quiet_logs
from slipstream.services.cli.option_groups import with_options
from slipstream.services.cli.prompt_options import PromptOptions
from slipstream.shared.nats_config import DEFAULT_NATS_URL

if TYPE_CHECKING:
    from slipstream.shared.client.answers import Answer


@with_options
def generate(
    prompt: Annotated[str, typer.Argument(help="What to ask.")],
    *,
    nats: NatsUrl = DEFAULT_NATS_URL,
    ask: PromptOptions = PromptOptions(),  # noqa: B008 - frozen
) -> None:
    """
    Ask a running stack; Ctrl-C cancels the request.

    For example:

      slipstream generate "What is the capital of France?"

      slipstream generate --raw "Once upon a time" --max-tokens 60 --temperature 0.8 --seed 7

      slipstream generate --json "Name three rivers" --stop "4."
    """
    from slipstream.services.cli.answer_printer import as_json, summary  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.interruption import Interruption  # noqa: PLC0415 - keeps --help quick

    quiet_logs()
    interruption = Interruption()
    answer = asyncio.run(interruption.guard(_answer(nats, prompt, ask)))
    if answer is None:
        raise typer.Exit(128 + (interruption.number or 0))
    if ask.json:
        typer.echo(as_json(answer))
    elif sys.stdout.isatty():
        typer.echo("\n" + summary(answer), err=True)


async def _answer(nats_url: str, prompt: str, ask: PromptOptions) -> "Answer":
    from slipstream.services.cli.answer_printer import fetch  # noqa: PLC0415 - keeps --help quick

    with answered(nats_url):
        async with connected(nats_url, "generate") as bus:
            return await fetch(bus, prompt, ask)
