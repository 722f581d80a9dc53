"""What a draft is told of how a request's tokens are chosen."""

from slipstream.shared.messages.draft import DraftSampling
from slipstream.shared.messages.sampling import SamplingParameters


def sampling_of(parameters: SamplingParameters) -> DraftSampling | None:
    """Return what a draft has to know to draw as the target does; None where nothing is drawn."""
    if parameters.temperature <= 0.0 or parameters.speculation_mode == "rejection":
        return None
    return DraftSampling(
        parameters.seed, parameters.temperature, parameters.top_k, parameters.top_p
    )
