"""structlog without rich, which it loads where it finds it."""

import importlib
import sys

_RICH = "rich"


def import_structlog() -> None:
    """
    Import structlog so that it takes rich for missing; call it before anything else imports it.

    rich draws tracebacks in colour, with the local variables that no log of ours may show. A
    service that can't use it would hold 5 MB of it.
    """
    if "structlog" in sys.modules or _RICH in sys.modules:
        return
    sys.modules[_RICH] = None  # type: ignore[assignment] # Python's way to say: not to be found
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules[_RICH]
