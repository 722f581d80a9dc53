"""What people see: progress on stderr, so that stdout holds nothing but answers."""

import sys
from pathlib import Path


def progress(line: str) -> None:
    """Say what is going on."""
    print(f"==> {line}", file=sys.stderr, flush=True)  # noqa: T201 - this is the console


def quiet_logs() -> None:
    """Send what our own libraries log to stderr, and errors only: a client speaks by itself."""
    # Imported here: the command line is quick where nothing is logged.
    from slipstream.shared.telemetry import names  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.telemetry.logging import configure_logging  # noqa: PLC0415 - keeps --help quick

    configure_logging(names.SERVICE_CLIENT, stream=sys.stderr, level="ERROR")


def resolve_cache_dir(cache_dir: Path | None) -> Path:
    """Return the folder for models: the one asked for, or the user's own."""
    if cache_dir is not None:
        return cache_dir
    # Imported here: it loads the readers of model files.
    from slipstream.shared.model.store import default_cache_dir  # noqa: PLC0415 - keeps --help quick

    return default_cache_dir()
