"""A stack to load with requests of a class: on the engine that serves, or on the fake one."""

import argparse
from contextlib import AbstractContextManager

from stack import running_stack

from slipstream.shared.measure.load.requests import RequestMaker, SyntheticShapes
from slipstream.shared.measure.load.traces import Lengths
from slipstream.shared.messages.common import LatencyClassName

# Steps that take what those of a small model take on a few cores.
_FAKE_STEPS = {"SLIPSTREAM_FAKE_STEP_MS": "10", "SLIPSTREAM_FAKE_ROW_US": "100"}
_VOCAB_SIZE, _FAKE_VOCAB_SIZE = 40_000, 259


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Let a program be told which engine it loads."""
    parser.add_argument("--engine", default="auto", choices=("auto", "fake"))
    parser.add_argument("--format", default="auto", help="of the weights")


def loaded_stack(engine: argparse.Namespace, *options: str) -> AbstractContextManager[str]:
    """Run a stack with that engine and some options of `slipstream up`; yield its address."""
    options = ("--engine", engine.engine, "--format", engine.format, *options)
    if engine.engine == "fake":
        return running_stack("--test-mode", *options, variables=_FAKE_STEPS)
    return running_stack(*options)


def maker_of(
    engine: argparse.Namespace,
    latency_class: LatencyClassName,
    lengths: Lengths,
    *,
    spread: float,
    seed: int,
) -> RequestMaker:
    """Return what makes the requests of a class, in words that the engine knows."""
    vocab_size = _FAKE_VOCAB_SIZE if engine.engine == "fake" else _VOCAB_SIZE
    shapes = SyntheticShapes(lengths, spread, seed)
    return RequestMaker(shapes, vocab_size, seed, {latency_class: 1.0}, {})
