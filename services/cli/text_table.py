"""Tables for people, of columns that are as wide as their widest cell."""

from collections.abc import Sequence


def right_aligned(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a line of names and one for each of the others, all to the right."""
    whole = [columns, *lines]
    widths = [max(len(line[column]) for line in whole) for column in range(len(columns))]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in whole
    )
