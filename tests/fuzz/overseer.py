"""Run the decoders in processes of their own; one that dies or stands still has found something."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .loop import BOARD_BYTES, Board, Defect, Outcome
from .target import HERE

HANG_S = 30.0  # of one input, on a machine that others use too
_START_S = 120.0  # the libraries take a while to be loaded
_LOOK_S = 0.05
Work = dict[str, int]  # inputs by decoder


def run(
    work: Work, seed: int, num_processes: int, tell: Callable[[Outcome], None]
) -> list[Outcome]:
    """Feed all decoders; `tell` hears of each that is done."""
    # Those that take longest are spread over the processes, whatever their order is.
    parts: list[Work] = [{} for _ in range(num_processes)]
    for number, (name, num_inputs) in enumerate(work.items()):
        parts[number % num_processes][name] = num_inputs
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(num_processes) as threads:
        for found in threads.map(lambda part: list(_run_part(part, seed, tell)), parts):
            outcomes += found
    return sorted(outcomes, key=lambda each: list(work).index(each.name))


def _run_part(work: Work, seed: int, tell: Callable[[Outcome], None]) -> Iterator[Outcome]:
    left = dict(work)
    while left:
        for outcome in _run_process(dict(left), seed):
            left.pop(outcome.name, None)
            tell(outcome)
            yield outcome


def _run_process(work: Work, seed: int) -> Iterator[Outcome]:
    """Yield what a process says, and at last what was found at its end, if it ended early."""
    with tempfile.TemporaryDirectory() as directory:
        path, said = Path(directory, "board"), Path(directory, "said")
        path.write_bytes(bytes(BOARD_BYTES))
        board = Board(path)
        listed = ",".join(f"{name}={num_inputs}" for name, num_inputs in work.items())
        command = [sys.executable, "-P", "-m", "fuzz.worker", str(path), str(seed), listed]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "RUST_BACKTRACE": "0"}
        with said.open("w") as out, Path(directory, "errors").open("w+") as errors:
            process = subprocess.Popen(command, stdout=out, stderr=errors, env=environment)
            try:
                is_stuck = _wait(process, board, said)
            finally:
                process.kill()
                process.wait()
            done = [_outcome(line) for line in said.read_text().splitlines()]
            yield from done
            if is_stuck or process.returncode != 0:
                errors.seek(0)
                yield _broken(
                    work, board, len(done), process.returncode, errors.read(), is_stuck=is_stuck
                )


def _wait(process: "subprocess.Popen[bytes]", board: Board, said: Path) -> bool:
    """Wait for the end; True when one input takes too long."""
    last: tuple[object, ...] = ()
    since = time.monotonic()
    while process.poll() is None:
        target, number, payload = board.read()
        seen = (target, number, said.stat().st_size)
        if seen != last:
            last, since = seen, time.monotonic()
        if time.monotonic() - since > (HANG_S if number or payload else _START_S):
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)
    return False


def _outcome(line: str) -> Outcome:
    fields = json.loads(line)
    defects = [Defect(each["what"], bytes.fromhex(each["payload"])) for each in fields["defects"]]
    return Outcome(**(fields | {"defects": defects}))


def _broken(
    work: Work,
    board: Board,
    num_done: int,
    code: int,
    errors: str,
    *,
    is_stuck: bool,
) -> Outcome:
    target, number, payload = board.read()
    if num_done == len(work):  # it has said all, and was about to end
        what = f"its process ended with {code}, stuck: {is_stuck}: {errors.strip()[-2000:]}"
        return Outcome(list(work)[-1], defects=[Defect(what, b"")])
    if target < num_done or not payload:
        number, payload = 0, b""  # it never got to the next one's first input
    what = f"no end after {HANG_S:g} s" if is_stuck else f"the process ended with {code}"
    outcome = Outcome(list(work)[num_done], num_inputs=number)
    outcome.defects.append(Defect(f"{what}: {errors.strip()[-300:]}", payload))
    return outcome
