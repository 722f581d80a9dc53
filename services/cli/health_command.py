"""`slipstream health`: whether the service whose status file this is can take work."""

import os
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from slipstream.shared.lifecycle import STALE_AFTER_S, Status, read_status


def health(
    role: Annotated[str | None, typer.Argument(help="The role it must have.")] = None,
    status_file: Annotated[
        Path | None,
        typer.Option(envvar="SLIPSTREAM_STATUS_FILE", help="The service's --status-file."),
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print it as a JSON object.")] = False,
) -> None:
    """
    Exit with 0 when the service is ready and its heart beats, else with 1, for health checks.

    For example:

      slipstream health decode --status-file /tmp/slipstream/status.json
    """
    problem = find_problem(status_file, role)
    if json:
        found = {"is_ready": problem is None, "role": role, "problem": problem}
        typer.echo(msgspec.json.encode(found).decode())
    else:
        typer.echo(problem or f"{_ready(status_file)}: {role or status_file}")
    raise typer.Exit(1 if problem else 0)


def _ready(status_file: Path | None) -> str:
    """Return how ready it is: of several schedulers all but one stand by."""
    status = read_status(status_file) if status_file is not None else None
    return f"ready ({status.detail})" if status is not None and status.detail else "ready"


def find_problem(status_file: Path | None, role: str | None = None) -> str | None:
    """Say in one line why the service can't take work, or return None."""
    if status_file is None:
        return "not ready: set SLIPSTREAM_STATUS_FILE to the service's status file"
    try:
        status = msgspec.json.decode(status_file.read_bytes(), type=Status)
    except OSError as error:
        return f"not ready: {status_file}: {os.strerror(error.errno or 0)}"
    except msgspec.DecodeError as error:
        return f"not ready: {status_file} is no status file ({error})"
    if role is not None and status.role != role:
        return f"not ready: {status_file} is of {status.role}, not of {role}"
    return _problem_of(status)


def _problem_of(status: Status) -> str | None:
    age_s = (time.monotonic_ns() - status.time_ns) / 1e9
    if age_s > STALE_AFTER_S:
        return f"not ready: {status.worker_id} gave no sign of life for {age_s:.0f} s"
    if status.state != "ready":
        return f"not ready: {status.worker_id} is {status.state}"
    return None
