"""Change values inside a message and leave its form whole: what a decoder's types must catch."""

import copy
import json
import math
import random
from collections.abc import Callable
from typing import Any

import msgspec

# Any, everywhere here: values of every type, as JSON and msgpack hold them.
Tree = Any
_VALUES: tuple[Tree, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, -(2**31), 2**53, 2**63 - 1, -(2**63), 2**64 - 1),
    *(0.5, -0.0, 1e308, -1e308, 5e-324, "", "x", "é\u2028😀", "\0", "r1", [], {}, [[]]),
    *([0, 1, 2], [2**32 - 1, -1], {"": None}, {"type": "failed"}, "a" * 300, [None] * 40),
)
_JSON_ONLY: tuple[Tree, ...] = (
    math.nan,
    math.inf,
    -math.inf,
    10**30,
    -(10**400),
    "\ud800",
    "\udc00x",
)
_MSGPACK_ONLY: tuple[Tree, ...] = (b"", b"\0\0\0\0", b"\xff" * 8, b"abc", b"\x01\0\0\0" * 64)
_LARGE = 1e300
_DEPTHS = (3, 40, 600, 1100, 20_000)


class TreeMutator:
    """Makes one input from samples of one encoding."""

    def __init__(self, random_: random.Random, encoding: str) -> None:
        self._random = random_
        self._is_json = encoding == "json"
        self._values = _VALUES + (_JSON_ONLY if self._is_json else _MSGPACK_ONLY)
        self._trees: dict[bytes, Tree] = {}

    def mutate(self, sample: bytes, other: bytes) -> bytes:
        """Return the sample with some other values in it."""
        tree = copy.deepcopy(self._tree(sample))
        if self._random.random() < 0.005:
            return self._nested(tree)
        for _ in range(1 + int(self._random.random() ** 3 * 5)):
            tree = self._change(tree, self._tree(other))
        try:
            return self._write(tree)
        except (OverflowError, RecursionError, TypeError):
            return sample  # the encoding can't say it

    def _tree(self, sample: bytes) -> Tree:
        known = self._trees.get(sample)
        if known is None:
            known = self._trees[sample] = (
                json.loads(sample) if self._is_json else msgspec.msgpack.decode(sample)
            )
        return known

    def _write(self, tree: Tree) -> bytes:
        if self._is_json:
            is_ascii = self._random.random() < 0.5
            return json.dumps(tree, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
        return msgspec.msgpack.encode(tree)

    def _nested(self, tree: Tree) -> bytes:
        """Return a sample with a value that is nested deeply."""
        depth = self._random.choice(_DEPTHS)
        mark = "@deep@"
        if isinstance(tree, dict) and tree:
            tree[self._random.choice(list(tree))] = mark
        elif isinstance(tree, list) and tree:
            tree[self._random.randrange(len(tree))] = mark
        if self._is_json:
            begin, end = self._random.choice((("[", "]"), ('{"a":', "}")))
            deep = begin * depth + "1" + end * depth
            return json.dumps(tree).replace(f'"{mark}"', deep).encode()
        begin_ = self._random.choice((b"\x91", b"\x81\xa1a"))
        return msgspec.msgpack.encode(tree).replace(b"\xa6@deep@", begin_ * depth + b"\1")

    def _change(self, tree: Tree, other: Tree) -> Tree:
        """Change one place of the tree; return the tree, which may be another one."""
        holder, key = self._place(tree)
        if holder is None:
            return self._value()
        way: Callable[[Tree, Tree, Tree], None] = self._random.choice(
            (self._replace, self._replace, self._drop, self._adopt, self._nudge, self._add)
        )
        way(holder, key, other)
        return tree

    def _value(self) -> Tree:
        return copy.deepcopy(self._random.choice(self._values))

    def _place(self, tree: Tree) -> tuple[Tree, Tree]:
        """Return a container in the tree, and a key of it."""
        holder, key = None, None
        at = tree
        while isinstance(at, dict | list) and at:
            holder = at
            keys = list(at) if isinstance(at, dict) else range(len(at))
            key = self._random.choice(keys)
            at = holder[key]
            if self._random.random() < 0.4:
                break
        return holder, key

    def _replace(self, holder: Tree, key: Tree, _other: Tree) -> None:
        holder[key] = self._value()

    def _drop(self, holder: Tree, key: Tree, _other: Tree) -> None:
        del holder[key]

    def _adopt(self, holder: Tree, key: Tree, other: Tree) -> None:
        """Take a value from the other sample."""
        giver, its_key = self._place(copy.deepcopy(other))
        if giver is not None:
            holder[key] = giver[its_key]

    def _nudge(self, holder: Tree, key: Tree, _other: Tree) -> None:
        value = holder[key]
        if isinstance(value, int | float) and abs(value) < _LARGE:
            holder[key] = self._random.choice((-value, value + 1, value - 1, value / 2))
        elif isinstance(value, str | list | bytes):
            holder[key] = value * self._random.choice((0, 2, 50))
        else:
            holder[key] = [value]

    def _add(self, holder: Tree, key: Tree, _other: Tree) -> None:
        value = copy.deepcopy(holder[key])
        if isinstance(holder, list):
            holder.insert(self._random.randrange(len(holder) + 1), value)
        else:
            holder[f"{key}{self._random.choice(('', '2', ' '))}"] = value
