"""Entry point of a draft worker's process."""

from functools import partial

from slipstream.services.draft.service import DraftService
from slipstream.shared.config import DraftConfig
from slipstream.shared.process import run_process


def run(config: DraftConfig) -> int:
    """Serve until a signal; return the exit status."""
    return run_process("draft", config, partial(DraftService, config))
