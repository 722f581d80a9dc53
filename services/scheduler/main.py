"""Entry point of the scheduler's process."""

from slipstream.services.scheduler.service import SchedulerService
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.process import run_process


def run(config: SchedulerConfig) -> int:
    """Serve until a signal; return the exit status."""
    return run_process(
        "scheduler",
        config,
        lambda bus, tracer, worker_id: SchedulerService(config, bus, tracer, worker_id),
    )
