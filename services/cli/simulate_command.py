"""`slipstream simulate`: what a cluster would do, without having it."""

from slipstream.services.cli.option_groups import with_options
from slipstream.services.cli.simulate_options import (
    ClusterOptions,
    CostOptions,
    LoadOptions,
    PlanOptions,
    ResultOptions,
    ValidateOptions,
)

_CLUSTER = ClusterOptions()
_LOAD = LoadOptions()
_COSTS = CostOptions()
_PLAN = PlanOptions()
_VALIDATE = ValidateOptions()
_RESULTS = ResultOptions()


@with_options
def simulate(
    cluster: ClusterOptions = _CLUSTER,
    load: LoadOptions = _LOAD,
    costs: CostOptions = _COSTS,
    plan: PlanOptions = _PLAN,
    validate: ValidateOptions = _VALIDATE,
    results: ResultOptions = _RESULTS,
) -> None:
    """
    Simulate a cluster under a load: the live queue, placement and batching on a clock that jumps.

    Steps cost what `slipstream bench engine --json` measured, or what the fake engine is told.

    For example:

      slipstream simulate --prefill 2 --decode 4 --rate 8 --costs engine.json

      slipstream simulate --trace azure_conv_2023.csv --rate 20 --decode 8 --plot run.png

      slipstream simulate --rate 10 --plan prefill=1..4,decode=1..8 --target-ttft-ms 500

      slipstream simulate --rate 12 --tenants a=0.9,b=0.1 --policies fcfs,sjf,fair

      slipstream simulate --validate --rate 2 --requests 120
    """
    from slipstream.services.cli.simulate_run import (  # noqa: PLC0415 - --help needs no numpy
        run_simulation,
    )

    run_simulation(cluster, load, costs, plan, validate, results)
