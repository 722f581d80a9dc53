"""`slipstream trace`: where the time of one request went."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from slipstream.services.cli.connection import NatsUrl, connected
from slipstream.services.cli.console import quiet_logs
from slipstream.shared.errors import ConfigurationError, NoRespondersError
from slipstream.shared.nats_config import DEFAULT_NATS_URL

if TYPE_CHECKING:
    from slipstream.shared.messages.traces import TraceFound, TracesFound
    from slipstream.shared.telemetry.received import ReceivedSpan

_ANSWER_S = 5.0


def trace(
    wanted: Annotated[
        str,
        typer.Argument(
            metavar="[ID]", help="A request's or a trace's id, or `last` (default: list them)."
        ),
    ] = "",
    *,
    nats: NatsUrl = DEFAULT_NATS_URL,
    file: Annotated[
        Path | None, typer.Option(help="Show the trace of this file of --export instead.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write it as a page.")] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write it as OTLP in JSON, which Jaeger's page opens.")
    ] = None,
    attributes: Annotated[
        bool, typer.Option("--attributes", "-a", help="Show all that spans say of themselves.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print it as OTLP in JSON.")] = False,
) -> None:
    """
    Show where the time of a request went, by the traces that `slipstream up` keeps.

    For example:

      slipstream trace

      slipstream trace last

      slipstream trace k3x9qp2mab4c7d2e5f6g8h9j --html trace.html --export trace.json

      slipstream trace --file trace.json --attributes
    """
    otlp = _otlp_of(file) if file is not None else None
    if otlp is None:
        from slipstream.shared.messages.traces import TracesFound  # noqa: PLC0415 - keeps --help quick

        quiet_logs()
        found = asyncio.run(_ask(nats, wanted))
        if isinstance(found, TracesFound):
            _print_list(found, is_json=json)
            return
        otlp = found.otlp
    _show(otlp, html, export, has_attributes=attributes, is_json=json)


def _show(
    otlp: object, html: Path | None, export: Path | None, *, has_attributes: bool, is_json: bool
) -> None:
    from slipstream.services.cli.trace_page import page  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.trace_waterfall import waterfall  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.telemetry.otlp_json import NoTraceError, from_otlp  # noqa: PLC0415 - keeps --help quick

    spans: Sequence[ReceivedSpan] = from_otlp(otlp)
    if not spans:
        raise NoTraceError("there are no spans in it")
    text = msgspec.json.encode(otlp)
    if html is not None:
        html.write_text(page(spans), encoding="utf-8")
    if export is not None:
        export.write_bytes(text)
    if is_json:
        typer.echo(text.decode())
    elif html is None and export is None:
        width = shutil.get_terminal_size((120, 40)).columns
        typer.echo("\n".join(waterfall(spans, width, has_attributes=has_attributes)))


def _print_list(found: "TracesFound", *, is_json: bool) -> None:
    from slipstream.services.cli.trace_waterfall import list_lines  # noqa: PLC0415 - keeps --help quick

    if is_json:
        typer.echo(msgspec.json.encode(found.traces).decode())
    elif found.traces:
        typer.echo("\n".join(list_lines(found.traces)))
    else:
        typer.echo("no trace yet; ask something: slipstream generate ...")


def _otlp_of(file: Path) -> object:
    try:
        return msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"--file {file} can't be read ({error.strerror})") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"--file {file} holds no JSON ({error})") from error


async def _ask(nats_url: str, wanted: str) -> "TraceFound | TracesFound":
    from slipstream.shared.bus.endpoint import call  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.bus.subjects import TRACES  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.messages.traces import TraceRequest  # noqa: PLC0415 - keeps --help quick

    async with connected(nats_url, "trace", is_operator=True) as bus:
        try:
            if wanted == "last":
                listed = await call(bus, TRACES, TraceRequest(), timeout_s=_ANSWER_S)
                if not listed.traces:
                    return listed  # type: ignore[no-any-return] # as `call` says
                wanted = listed.traces[0].trace_id
            return await call(bus, TRACES, TraceRequest(id=wanted), timeout_s=_ANSWER_S)  # type: ignore[no-any-return] # as above
        except NoRespondersError as error:
            raise ConfigurationError(
                f"nobody keeps traces at {nats_url}: `slipstream up` does (unless told "
                "--traces 0); where services export to a collector of yours, look there"
            ) from error
