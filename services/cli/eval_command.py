"""`slipstream eval`: what formats cost in accuracy, against float32 on the same text."""

from slipstream.services.cli.measure_options import EvalOptions
from slipstream.services.cli.option_groups import with_options

_DEFAULTS = EvalOptions()


@with_options
def evaluate(options: EvalOptions = _DEFAULTS) -> None:
    """
    Tell what formats cost in accuracy, against float32 on the same text.

    The native engine computes the text as it stands, and every position is scored: the ratio of
    perplexities, mean and 99th percentile of KL(float32 || format), and how often both hold the
    same token for the likeliest, each with its 95 % bootstrap interval.

    For example:

      slipstream eval

      slipstream eval --format float32,int8 --kv-format float32,int8

      slipstream eval --text novel.txt --tokens 20000 --json figures.json
    """
    from slipstream.services.cli.eval_run import run_evaluation  # noqa: PLC0415 - --help is quick without numpy

    run_evaluation(options)
