"""The process in which decoders run: what ends it, or fills its memory, is a defect too."""

import argparse
import json
import logging
import resource
import sys
from pathlib import Path

import structlog

from .catalogue import find
from .loop import Board, feed

_ROOM_BYTES = 3 * 2**30  # of addresses, beyond what the libraries take


def main() -> None:
    """Feed decoders one after the other, and print a line of JSON for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("board", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("work", help="NAME=INPUTS,NAME=INPUTS")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    structlog.configure(processors=[_drop])
    board = Board(given.board)
    work = [part.rpartition("=") for part in given.work.split(",")]
    targets = find([name for name, _, _ in work])
    _limit_memory()
    for position, (target, (_, _, num_inputs)) in enumerate(zip(targets, work, strict=True)):
        outcome = feed(target, position, int(num_inputs), given.seed, board)
        sys.stdout.write(json.dumps(outcome.as_json()) + "\n")
        sys.stdout.flush()


def _drop(_logger: object, _name: str, _event: object) -> dict[str, object]:
    raise structlog.DropEvent


def _limit_memory() -> None:
    """What asks for gigabytes gets a MemoryError, which no decoder refuses with."""
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = size * resource.getpagesize() + _ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
