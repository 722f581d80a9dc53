"""Entry point of a decode worker's process."""

from functools import partial

from slipstream.services.decode.service import DecodeService
from slipstream.shared.config import DecodeConfig
from slipstream.shared.process import run_process


def run(config: DecodeConfig) -> int:
    """Serve until a signal; return the exit status."""
    return run_process("decode", config, partial(DecodeService, config))
