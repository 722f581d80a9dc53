"""`slipstream bench`: measure what runs here against what this machine could do."""

import typer

from slipstream.services.cli.ablation_options import AblationOptions
from slipstream.services.cli.measure_options import EngineBenchOptions, PrefixBenchOptions
from slipstream.services.cli.option_groups import with_options
from slipstream.services.cli.serve_bench_options import ServeBenchOptions
from slipstream.services.cli.speculate_bench_options import SpeculateBenchOptions
from slipstream.services.cli.stack_options import StackOptions

_DEFAULTS = EngineBenchOptions()
_PREFIX_DEFAULTS = PrefixBenchOptions()
_SERVE_DEFAULTS = ServeBenchOptions()
_SPECULATE_DEFAULTS = SpeculateBenchOptions()
_ABLATION_DEFAULTS = AblationOptions()
# As the engine alone, which it is compared with: prompts are computed where answers are.
_SERVE_STACK = StackOptions(route="local", prefill=0, draft=0)

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
    from slipstream.services.cli.bench_run import run_engine_bench  # noqa: PLC0415 - --help is quick without numpy

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
    from slipstream.services.cli.prefix_bench_run import run_prefix_bench  # noqa: PLC0415 - keeps --help quick

    run_prefix_bench(options)


@app.command()
@with_options
def serve(options: ServeBenchOptions = _SERVE_DEFAULTS, stack: StackOptions = _SERVE_STACK) -> None:
    """
    Load a stack through NATS, and say what its clients waited for.

    A closed loop keeps a number of streams running; an open one sends requests at a rate, or as a
    trace says, whatever becomes of them. In turns with the stack the engine of its decode worker
    runs the same loads alone: what the way through NATS and the services takes is the difference.

    For example:

      slipstream bench serve --streams 1,8,32 --json serve.json

      slipstream bench serve --rate 1,2,4 --arrivals bursts --prefill 1 --route auto

      slipstream bench serve --trace azure_conv_2023.csv --context 1024 --plot plots

      slipstream bench serve --compare aggregated,disaggregated --rate 1,2,3,4 --plot plots
    """
    from slipstream.services.cli.serve_bench_run import run_serve_bench  # noqa: PLC0415 - keeps --help quick

    run_serve_bench(options, stack)


@app.command()
@with_options
def speculate(options: SpeculateBenchOptions = _SPECULATE_DEFAULTS) -> None:
    """
    Time real prompts with and without drafts, in pairs, and compare with what the formula says.

    Fails where speculation changes a token. Only decoding counts, first token to last; the prompts
    are cached. Outputs of chat that loop are left out, and counted.

    For example:

      slipstream bench speculate --format int8 --json speculate.json --plot speculate.png

      slipstream bench speculate --sets chat --batch 1 --temperature 0.7 --max-pairs 5
    """
    from slipstream.services.cli.speculate_bench_run import run_speculate_bench  # noqa: PLC0415 - keeps --help quick

    run_speculate_bench(options)


@app.command()
@with_options
def ablation(options: AblationOptions = _ABLATION_DEFAULTS) -> None:
    """
    Leave out one layer after another, and all of them, and say what each gains or loses.

    One workload, a slice of a trace whose prompts begin alike, is run by stacks in turns: with
    everything on, and without a layer. Fails where a layer that must not changes a token.

    For example:

      slipstream bench ablation --json ablation.json --plot ablation.png

      slipstream bench ablation --layers "kv,prefix cache" --rounds 3

      slipstream bench ablation --quick
    """
    from slipstream.services.cli.ablation_run import run_ablation  # noqa: PLC0415 - keeps --help quick

    run_ablation(options)
