"""The services: where each lives, what configures it, and how it is run."""

from dataclasses import dataclass
from importlib import import_module

from slipstream.shared.config import (
    DecodeConfig,
    DraftConfig,
    GatewayConfig,
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
    RoleCommand("gateway", "gateway", GatewayConfig, "Serve the OpenAI-compatible API over HTTP."),
    RoleCommand("kv", "kv_manager", KvConfig, "Own the KV blocks of this host."),
    RoleCommand("prefill", "prefill", PrefillConfig, "Compute the KV of prompts."),
    RoleCommand("decode", "decode", DecodeConfig, "Generate tokens and stream them."),
    RoleCommand("draft", "draft", DraftConfig, "Propose tokens for verification."),
)


def run_role(folder: str, config: ServiceConfig) -> int:
    """Run a service in this process until it ends; return the exit status."""
    # Imported now: only the workers may need torch, and no command waits for another's imports.
    module = import_module(f"slipstream.services.{folder}.main")
    status: int = module.run(config)
    return status
