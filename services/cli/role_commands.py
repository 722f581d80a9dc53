"""The commands that run one service each."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer

from slipstream.services.cli.config_options import command_for
from slipstream.shared.config import (
    DecodeConfig,
    DraftConfig,
    KvConfig,
    PrefillConfig,
    SchedulerConfig,
    ServiceConfig,
)
from slipstream.shared.messages.common import Role


@dataclass(frozen=True)
class RoleCommand:
    """A service: where it lives, what configures it, what it does."""

    role: Role
    folder: str
    config_class: type[ServiceConfig]
    help: str


ROLE_COMMANDS = (
    RoleCommand(
        "scheduler", "scheduler", SchedulerConfig, "Admit requests and place them on workers."
    ),
    RoleCommand("kv", "kv_manager", KvConfig, "Own the KV blocks of this host."),
    RoleCommand("prefill", "prefill", PrefillConfig, "Compute the KV of prompts."),
    RoleCommand("decode", "decode", DecodeConfig, "Generate tokens and stream them."),
    RoleCommand("draft", "draft", DraftConfig, "Propose tokens for verification."),
)


def add_role_commands(app: typer.Typer) -> None:
    """Register one command a service."""
    for each in ROLE_COMMANDS:
        command = command_for(each.config_class, _runner(each.folder))
        app.command(each.role, help=each.help, rich_help_panel="One service each")(command)


def _runner(folder: str) -> Any:  # Any: each service takes its own configuration
    def run(config: ServiceConfig) -> None:
        # Imported now: only the workers may need torch, and no command waits for another's imports.
        module = import_module(f"slipstream.services.{folder}.main")
        raise typer.Exit(module.run(config))

    return run
