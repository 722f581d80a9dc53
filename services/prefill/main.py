"""Entry point of a prefill worker's process."""

from functools import partial

from slipstream.services.prefill.service import PrefillService
from slipstream.shared.config import PrefillConfig
from slipstream.shared.process import run_process


def run(config: PrefillConfig) -> int:
    """Serve until a signal; return the exit status."""
    return run_process("prefill", config, partial(PrefillService, config))
