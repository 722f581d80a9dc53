"""Lists of names on the command line."""

from collections.abc import Sequence

from slipstream.shared.errors import ConfigurationError


def parse_names(text: str, option: str, known: Sequence[str]) -> list[str]:
    """Return the names of a list with commas. Raises ConfigurationError."""
    names = [part.strip() for part in text.split(",")]
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise ConfigurationError(
            f"{option} {unknown!r} is none of {', '.join(known)}; give one or more, with commas "
            "between them"
        )
    return names
