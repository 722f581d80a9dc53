"""Entry point of the scheduler's process."""

from functools import partial

from slipstream.services.scheduler.service import SchedulerService
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.process import run_process


def run(config: SchedulerConfig) -> int:
    """Serve until a signal; return the exit status."""
    return run_process("scheduler", config, partial(SchedulerService, config))
