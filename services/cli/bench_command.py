"""`slipstream bench`: measure what runs here against what this machine could do."""

import typer

from slipstream.services.cli.measure_options import EngineBenchOptions
from slipstream.services.cli.option_groups import with_options

_DEFAULTS = EngineBenchOptions()

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
