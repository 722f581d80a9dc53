"""Entry point of a prefill worker's process."""

from slipstream.services.prefill.service import PrefillService
from slipstream.shared.config import PrefillConfig
from slipstream.shared.process import run_process


def run(config: PrefillConfig) -> int:
    """Serve until a signal; return the exit status."""
    return run_process(
        "prefill",
        config,
        lambda bus, tracer, worker_id: PrefillService(config, bus, tracer, worker_id),
    )
