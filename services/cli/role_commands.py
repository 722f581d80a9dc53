"""The commands that run one service each."""

from typing import Any

import typer

from slipstream.services.cli.config_options import command_for
from slipstream.services.cli.roles import ROLE_COMMANDS, run_role
from slipstream.shared.config import ServiceConfig


def add_role_commands(app: typer.Typer) -> None:
    """Register one command a service."""
    for each in ROLE_COMMANDS:
        command = command_for(each.config_class, _runner(each.folder))
        app.command(each.role, help=each.help, rich_help_panel="One service each")(command)


def _runner(folder: str) -> Any:  # Any: each service takes its own configuration
    def run(config: ServiceConfig) -> None:
        raise typer.Exit(run_role(folder, config))

    return run
