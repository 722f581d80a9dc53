"""The commands that run one service each."""

from dataclasses import MISSING, fields
from typing import Any

import typer

from slipstream.services.cli.config_options import command_for
from slipstream.services.cli.draft_command import draft_app
from slipstream.services.cli.roles import ROLE_COMMANDS, run_role
from slipstream.shared.config import ServiceConfig

_PANEL = "One service each"


def add_role_commands(app: typer.Typer) -> None:
    """Register one command a service."""
    for each in ROLE_COMMANDS:
        command = command_for(each.config_class, _runner(each.folder))
        words = f"{each.help}\n\n{_example(each.role, each.config_class)}"
        if each.role == "draft":
            app.add_typer(draft_app(command, words), name=each.role, rich_help_panel=_PANEL)
        else:
            app.command(each.role, help=words, rich_help_panel=_PANEL)(command)


def _example(role: str, config_class: type[ServiceConfig]) -> str:
    """Return a command that starts the service with all that it must be told."""
    needs_arena = any(
        each.name == "arena_dir" and each.default is MISSING for each in fields(config_class)
    )
    arena = " --arena-dir /dev/shm/slipstream" if needs_arena else ""
    return f"For example:\n\n  slipstream {role} --nats nats://127.0.0.1:4222{arena}"


def _runner(folder: str) -> Any:  # Any: each service takes its own configuration
    def run(config: ServiceConfig) -> None:
        raise typer.Exit(run_role(folder, config))

    return run
