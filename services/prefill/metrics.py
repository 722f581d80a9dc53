"""What a prefill worker shows. Endings are counted by who sends them: never this worker."""

from slipstream.services.prefill.jobs import PrefillJobs
from slipstream.shared.telemetry import metric_names
from slipstream.shared.telemetry.meter import Meter, Readings
from slipstream.shared.worker.engine import EngineThread
from slipstream.shared.worker.step_metrics import StepMetrics


class PrefillMetrics:
    """Its steps and its requests."""

    def __init__(self, meter: Meter) -> None:
        self.steps = StepMetrics(meter)
        self._meter = meter

    def watch(self, jobs: PrefillJobs, engine: EngineThread) -> None:
        """Show the requests that wait for KV blocks and those that have them."""
        self._meter.watch(metric_names.REQUESTS, lambda: _requests(jobs))
        self.steps.watch(engine)


def _requests(jobs: PrefillJobs) -> Readings:
    return {
        ("prefill", "waiting"): jobs.num_running - jobs.num_leased,
        ("prefill", "prefilling"): jobs.num_leased,
    }
