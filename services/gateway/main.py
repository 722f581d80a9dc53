"""Entry point of the gateway's process."""

from functools import partial

from slipstream.services.gateway.service import GatewayService
from slipstream.shared.config import GatewayConfig
from slipstream.shared.process import run_process


def run(config: GatewayConfig) -> int:
    """Serve until a signal; return the exit status."""
    return run_process("gateway", config, partial(GatewayService, config))
