"""Layers, workload and rows of `slipstream bench ablation`."""

from pathlib import Path
from typing import Any

import pytest

from slipstream.services.cli.ablation import Pairs, Window
from slipstream.services.cli.ablation_layers import (
    EVERYTHING_OFF,
    EVERYTHING_ON,
    LAYERS,
    Variant,
    chosen_layers,
    variants_of,
)
from slipstream.services.cli.ablation_options import AblationOptions
from slipstream.services.cli.ablation_report import (
    OtherTokensError,
    check_tokens,
    rows_of,
    table,
    verdict_of,
)
from slipstream.services.cli.ablation_workload import make_workload
from slipstream.services.cli.serve_bench_stacks import Mode
from slipstream.services.cli.stack import StackSettings
from slipstream.shared.config import DecodeConfig, KvConfig
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.load.requests import PlannedRequest
from slipstream.shared.measure.load.samples import Sample
from slipstream.shared.messages.packed import PackedInts

SETTINGS = StackSettings(
    cache_dir=Path("/cache"),
    is_test_mode=True,
    num_prefill=0,
    num_draft=0,
    weight_format="int8",
    kv_format="int8",
)


def encode(text: str) -> list[int]:
    return [ord(letter) % 250 for letter in text]


def variant(name: str, *, keeps_tokens: bool = True) -> Variant:
    return Variant(name, f"no {name}", Mode(name=name, settings=SETTINGS), keeps_tokens)


def window(seconds: float, token_ids: list[int], num_bytes: float | None = None) -> Window:
    """Return a run of one request: half of its tokens at half the time, the rest at the end."""
    half = len(token_ids) // 2
    sample = Sample(PlannedRequest(PackedInts([1]), len(token_ids)), 1.0, 1.0)
    sample.arrivals = [(1 + seconds / 2, half), (1 + seconds, len(token_ids) - half)]
    sample.token_ids = token_ids
    return Window([sample], num_bytes)


# Layers


def test_each_layer_is_left_out_by_itself_and_then_all_of_them() -> None:
    variants = variants_of(LAYERS, SETTINGS, has_everything_off=True)
    decode = {each.name: each.mode.config(DecodeConfig, "decode") for each in variants}
    kv = {each.name: each.mode.config(KvConfig, "kv") for each in variants}

    def off(name: str) -> list[str]:
        found, host = decode[name], kv[name]
        seen = {
            "weights": found.weight_format == "bf16",
            "kv": found.kv_format == host.kv_format == "bf16",
            "shared heads": not (found.is_sharing_heads or host.is_sharing_heads),
            "fused step": not found.is_fused,
            "paging": not found.is_paging,
            "continuous batching": not found.is_batching_continuously,
            "chunked prefill": not found.is_chunking_prompts,
            "prefix cache": not host.is_prefix_cache_on,
            "speculation": found.speculation == "off",
        }
        return [layer for layer, is_off in seen.items() if is_off]

    names = [layer.name for layer in LAYERS]
    assert [*names, EVERYTHING_OFF] == [each.name for each in variants]
    for name in names:
        assert [name] == off(name)
    assert names == off(EVERYTHING_OFF)


def test_only_other_numbers_may_give_other_tokens() -> None:
    variants = variants_of(LAYERS, SETTINGS, has_everything_off=True)

    assert ["weights", "kv", EVERYTHING_OFF] == [
        each.name for each in variants if not each.keeps_tokens
    ]


def test_layers_of_the_native_engine_are_none_of_another_one() -> None:
    assert ["paging", "prefix cache"] == [
        layer.name for layer in chosen_layers("prefix cache, paging", is_native=False)
    ]
    assert "kv" not in [layer.name for layer in chosen_layers(None, is_native=False)]
    with pytest.raises(ConfigurationError, match="--layers 'kv' is none of paging"):
        chosen_layers("kv", is_native=False)


# The workload


def test_prompts_begin_alike_and_fit_into_the_context() -> None:
    options = AblationOptions(requests=12, streams=4, context=300, system=40)

    workload = make_workload(options, encode, max_context=2048)

    prompts = [list(request.token_ids) for request in workload.requests]
    assert 12 == len(prompts)
    assert 1 == len({tuple(prompt[:40]) for prompt in prompts})
    assert 12 == len({tuple(prompt[40:]) for prompt in prompts})
    totals = [
        len(prompt) + request.num_output_tokens
        for prompt, request in zip(prompts, workload.requests, strict=True)
    ]
    assert 300 == max(totals)
    assert list(range(1, 13)) == [request.seed for request in workload.requests]


def test_a_run_ends_with_its_requests_whatever_the_time() -> None:
    options = AblationOptions(requests=5, streams=2, context=300, system=10)
    arrivals = make_workload(options, encode, max_context=2048).load().arrivals()
    numbers = [each.number for each in arrivals.due(0.0)]
    for moment in range(1, 8):
        arrivals.ended(float(moment))
        numbers += [each.number for each in arrivals.due(float(moment))]

    assert [0, 1, 2, 3, 4] == numbers
    assert None is arrivals.next_at_s


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"context": 4096}, "4096.*2048.*lower --context"),
        ({"context": 100, "system": 99}, "--system 99 leaves no room.*--context 100"),
        ({"requests": 129}, "--requests 129 and the trace has 128"),
    ],
)
def test_a_workload_that_can_not_be_is_refused(fields: dict[str, Any], message: str) -> None:
    # Any: options of every type
    with pytest.raises(ConfigurationError, match=message):
        make_workload(AblationOptions(**fields), encode, max_context=2048)


# Rows


def test_a_row_compares_with_the_runs_beside_it() -> None:
    """Both slow down together: the ratio is that of the pairs."""
    tokens = list(range(40))
    pairs = Pairs(variant("paging"))
    for slower in (1.0, 2.0, 1.5, 1.0, 3.0):
        pairs.with_all.append(window(2.0 * slower, tokens, 80e6))
        pairs.without.append(window(4.0 * slower, tokens, 120e6))

    reference, row = rows_of([pairs])

    assert (EVERYTHING_ON, 1.0) == (reference["layer"], reference["ratio"])
    assert pytest.approx(40 / 3) == reference["throughput_tok_s"]
    assert pytest.approx((0.5, 0.5, 0.5)) == (row["ratio"], row["ratio_low"], row["ratio_high"])
    assert "gains" == row["verdict"]
    assert (2e6, 3e6) == (reference["bytes_per_token"], row["bytes_per_token"])
    assert pytest.approx(3000.0) == row["ttft_ms"]["p50"]
    assert pytest.approx(150.0) == row["tpot_ms"]["p50"]
    assert reference["tokens_equal"]
    assert row["tokens_equal"]
    check_tokens([reference, row])


@pytest.mark.parametrize(
    ("low", "high", "num_rounds", "verdict"),
    [
        (1.01, 1.2, 5, "loses"),
        (0.8, 0.99, 5, "gains"),
        (0.97, 1.02, 5, "makes no difference"),
        (1.3, 1.3, 1, "needs more rounds"),
    ],
)
def test_a_layer_loses_only_where_its_interval_says_so(
    low: float, high: float, num_rounds: int, verdict: str
) -> None:
    assert verdict == verdict_of(low, high, num_rounds)


def test_a_layer_that_loses_is_said_to() -> None:
    pairs = Pairs(variant("speculation"))
    for slower in (1.0, 1.1, 1.2, 1.3, 1.4):
        pairs.with_all.append(window(2.0 * slower, [1, 2]))
        pairs.without.append(window(1.5 * slower, [1, 2]))

    text = table(rows_of([pairs]))

    assert "loses" in text
    assert "1.333" in text
    assert "WRONG" not in text


def test_other_tokens_are_an_error_only_where_they_must_not_be() -> None:
    def pairs(*, keeps_tokens: bool) -> Pairs:
        made = Pairs(variant("kv", keeps_tokens=keeps_tokens))
        made.with_all.append(window(2.0, [1, 2, 3]))
        made.without.append(window(2.0, [1, 2, 4]))
        return made

    allowed = rows_of([pairs(keeps_tokens=False)])
    assert not allowed[1]["tokens_equal"]
    check_tokens(allowed)

    with pytest.raises(OtherTokensError, match="without kv"):
        check_tokens(rows_of([pairs(keeps_tokens=True)]))


def test_everything_on_has_to_keep_its_tokens_too() -> None:
    pairs = Pairs(variant("paging"))
    pairs.with_all += [window(2.0, [1, 2, 3]), window(2.0, [1, 2, 5])]
    pairs.without += [window(2.0, [1, 2, 3]), window(2.0, [1, 2, 3])]

    with pytest.raises(OtherTokensError, match=EVERYTHING_ON):
        check_tokens(rows_of([pairs]))


def test_bytes_that_were_not_counted_are_not_zero() -> None:
    pairs = Pairs(variant("paging"))
    pairs.with_all.append(window(2.0, [1, 2]))
    pairs.without.append(window(2.0, [1, 2]))

    assert {None} == {row["bytes_per_token"] for row in rows_of([pairs])}
