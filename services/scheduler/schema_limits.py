"""
What a JSON schema may combine.

Where several patterns must hold at once, the grammar library builds the intersection of their
automata, whose size is the product of theirs, and bounds neither its time nor its memory: twelve
short patterns take seconds and 100 MB, and each further one doubles both.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from slipstream.shared.errors import InvalidRequestError

MAX_COMBINED_PATTERNS = 6  # take 0.1 s at the worst

_BRANCHES = ("anyOf", "oneOf", "allOf")
# What stands beside a reference or a choice without adding a condition to it.
_ANNOTATIONS = frozenset(
    (
        *("$anchor", "$comment", "$defs", "$id", "$schema", "default", "definitions"),
        *("deprecated", "description", "examples", "readOnly", "title", "writeOnly"),
    )
)


def check_combinations(field: str, schema: Mapping[str, Any]) -> None:
    """Refuse too many patterns that can meet in one condition. Raises InvalidRequestError."""
    num_patterns, is_combining = 0, False
    for node in _objects(schema):
        num_patterns += _num_patterns(node)
        is_combining = is_combining or _combines(node)
    if is_combining and num_patterns > MAX_COMBINED_PATTERNS:
        raise InvalidRequestError(
            field,
            f"{num_patterns} patterns and formats are above the limit of {MAX_COMBINED_PATTERNS} "
            "in a schema that combines conditions (allOf, or $ref, anyOf or oneOf beside others); "
            "write each combination as one pattern",
            limit=MAX_COMBINED_PATTERNS,
        )


# Any, here and below: whatever JSON a client sent. No recursion: it may be nested deeply.
def _objects(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            yield node
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)


def _num_patterns(node: Mapping[str, Any]) -> int:
    named = node.get("patternProperties")
    own = sum(isinstance(node.get(name), str) for name in ("pattern", "format"))
    return own + (len(named) if isinstance(named, Mapping) else 0)


def _combines(node: Mapping[str, Any]) -> bool:
    branches = [name for name in _BRANCHES if isinstance(node.get(name), list)]
    is_joining = "allOf" in branches and len(node["allOf"]) > 1
    is_choosing = bool(branches) or isinstance(node.get("$ref"), str)
    return is_joining or (is_choosing and len(node.keys() - _ANNOTATIONS) > 1)
