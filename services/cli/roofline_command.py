"""`slipstream roofline`: how fast a model can be at most on a machine, and what holds it back."""

from slipstream.services.cli.measure_options import RooflineOptions
from slipstream.services.cli.option_groups import with_options

_DEFAULTS = RooflineOptions()


@with_options
def roofline(options: RooflineOptions = _DEFAULTS) -> None:
    """
    State the wall for a model and a machine: operations, bytes, and the two times they take.

    The longer time binds. On this machine, with a format that the engine has, the engine is timed
    too, and printed is how much of what the wall allows it reaches.

    For example:

      slipstream roofline --format int8 --kv-format int8 --batch 8

      slipstream roofline --model 7b --hardware A100-80G
    """
    # Imported here: --help is quick without numpy.
    from slipstream.services.cli.roofline_run import run_roofline  # noqa: PLC0415 - keeps --help quick

    run_roofline(options)
