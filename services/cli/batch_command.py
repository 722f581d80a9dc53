"""`slipstream batch`: a file of requests in, a file of answers out."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.services.cli.connection import NatsUrl, connected
from slipstream.services.cli.console import progress, quiet_logs
from slipstream.services.cli.exit_codes import NOT_YET, SOME_FAILED
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.nats_config import DEFAULT_NATS_URL

if TYPE_CHECKING:
    from slipstream.services.cli.batch_input import InputFile
    from slipstream.services.cli.batch_output import OutputFile
    from slipstream.services.cli.batch_progress import Progress
    from slipstream.services.cli.batch_run import BatchLimits, Summary


def batch(
    source: Annotated[
        Path, typer.Argument(metavar="IN.JSONL", help="Requests in the OpenAI Batch format.")
    ],
    target: Annotated[
        Path, typer.Argument(metavar="OUT.JSONL", help="Answers; goes on where it ended.")
    ],
    *,
    nats: NatsUrl = DEFAULT_NATS_URL,
    concurrency: Annotated[
        int, typer.Option(min=1, max=1024, help="Most requests submitted at once.")
    ] = 32,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for all the answers.")
    ] = 86_400.0,
    run_name: Annotated[
        str, typer.Option(help="Answers of a day are kept; another name has them computed anew.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """
    Answer a file of requests. Run again after a crash, it goes on where it ended.

    Each line is stored by the server and answered once; answers are appended as they come. Exits
    with 3 while some have no answer, with 4 if some ended with an error.

    For example:

      slipstream batch in.jsonl out.jsonl

      slipstream batch in.jsonl out.jsonl --concurrency 128 --json
    """
    from slipstream.services.cli.batch_run import BatchLimits  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.messages.codec import encode  # noqa: PLC0415 - keeps --help quick

    quiet_logs()
    if source.exists() and target.exists() and source.samefile(target):
        raise ConfigurationError(f"{target} is the input; name another file for the output")
    limits = BatchLimits(num_in_flight=concurrency, wait_s=wait, run=run_name)
    summary = _run(source, target, nats, limits)
    if json:
        typer.echo(encode(summary, "json").decode())
    if summary.num_unanswered:
        raise typer.Exit(NOT_YET)
    if summary.num_failed:
        raise typer.Exit(SOME_FAILED)


def _run(source: Path, target: Path, nats_url: str, limits: "BatchLimits") -> "Summary":
    from slipstream.services.cli.batch_input import InputFile  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.batch_output import OutputFile  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.batch_progress import describe, progress_for  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.interruption import Interruption  # noqa: PLC0415 - keeps --help quick

    requests = InputFile(source)
    interruption = Interruption()
    shown = progress_for(is_terminal=sys.stderr.isatty())
    with OutputFile(target, {each.name: each for each in requests.lines}) as output:
        work = _serve(requests, output, nats_url, limits, shown)
        summary = asyncio.run(interruption.guard(work))
    if summary is None:
        progress("interrupted; the same command goes on from here")
        raise typer.Exit(128 + (interruption.number or 0))
    progress(describe(summary))
    return summary


async def _serve(
    requests: "InputFile",
    output: "OutputFile",
    nats_url: str,
    limits: "BatchLimits",
    shown: "Progress",
) -> "Summary":
    from slipstream.services.cli.batch_run import BatchRun  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.bus.durable import StorageError  # noqa: PLC0415 - keeps --help quick

    async with connected(nats_url, "batch") as bus:
        run = BatchRun(bus.durable(), requests, output, limits, shown.update)
        with shown:
            shown.update(run.summary)
            try:
                return await run.run()
            except StorageError as error:
                raise StorageError(
                    f"{error} at {nats_url}; submissions are stored once a scheduler has run there"
                ) from error
