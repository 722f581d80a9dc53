"""`slipstream bench`: measure what runs here against what this machine could do."""

import typer

from slipstream.services.cli.measure_options import EngineBenchOptions, PrefixBenchOptions
from slipstream.services.cli.option_groups import with_options

_DEFAULTS = EngineBenchOptions()
_PREFIX_DEFAULTS = PrefixBenchOptions()

app = typer.Typer(
    no_args_is_help=True,
    help="Measure what runs here against what this machine could do.\n\n"
    "For example: slipstream bench engine --format int8 --kv-format int8",
)


@app.command()
@with_options
def engine(options: EngineBenchOptions = _DEFAULTS) -> None:
    """
    Time steps of the engine, and the machine reading as many bytes, in one interleaved run.

    A step can't be faster than the machine reads its bytes: weights once, and the KV of every
    position. Printed are medians with their 95 % bootstrap intervals.

    For example:

      slipstream bench engine --format int8 --kv-format int8 --json engine.json

      slipstream bench engine --format torch,float32,int8 --plot engine.png

      slipstream bench engine --format int8 --unfused
    """
    # Imported here: --help is quick without numpy.
    from slipstream.services.cli.bench_run import run_engine_bench  # noqa: PLC0415

    run_engine_bench(options)


@app.command()
@with_options
def prefix(options: PrefixBenchOptions = _PREFIX_DEFAULTS) -> None:
    """
    Time first tokens of prompts that are cached, and hand-overs on each transfer plane.

    Stacks of its own run beside each other: one host, and two hosts on this machine for each plane
    between hosts. A cached prompt must be answered with the tokens of the cold one.

    For example:

      slipstream bench prefix --json prefix.json

      slipstream bench prefix --prompts 1500 --planes tcp --format int8
    """
    # Imported here: --help is quick.
    from slipstream.services.cli.prefix_bench_run import run_prefix_bench  # noqa: PLC0415

    run_prefix_bench(options)
