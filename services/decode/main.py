"""Entry point of a decode worker's process, and of its engine without one."""

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from slipstream.services.decode.service import DecodeService
from slipstream.shared.config import DecodeConfig
from slipstream.shared.measure.load.engine import SteppedEngine
from slipstream.shared.process import run_process


def run(config: DecodeConfig) -> int:
    """Serve until a signal; return the exit status."""
    return run_process("decode", config, partial(DecodeService, config))


def open_in_process(
    config: DecodeConfig, directory: Path, num_blocks: int
) -> AbstractContextManager[SteppedEngine]:
    """Run what a worker of this configuration computes with in this process, without a bus."""
    from slipstream.services.decode.in_process import opened_engine  # noqa: PLC0415 - no worker needs it

    return opened_engine(config, directory, num_blocks)
