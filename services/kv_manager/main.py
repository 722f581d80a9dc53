"""Entry point of the KV manager's process."""

from functools import partial

from slipstream.services.kv_manager.service import KvService
from slipstream.shared.config import KvConfig
from slipstream.shared.process import run_process


def run(config: KvConfig) -> int:
    """Serve this host until a signal; return the exit status."""
    return run_process("kv", config, partial(KvService, config))
