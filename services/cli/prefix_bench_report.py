"""What `slipstream bench prefix` prints and writes."""

import statistics
from collections.abc import Sequence
from typing import Any

from slipstream.services.cli.prefix_bench import HandOverSamples, HitSamples
from slipstream.shared.measure.estimate import Estimate, describe_machine


def hit_row(samples: HitSamples) -> dict[str, Any]:
    """Return the figures of one prompt length. Any: numbers and intervals."""
    ratio = Estimate.of_ratio("ratio", samples.hit_ms, samples.cold_ms)
    cold, hit, fresh = (
        Estimate.of(name, values)
        for name, values in (
            ("cold", samples.cold_ms),
            ("hit", samples.hit_ms),
            ("fresh", samples.fresh_ms),
        )
    )
    return {
        "prompt_tokens": samples.num_prompt_tokens,
        "cached_tokens": statistics.median_low(samples.num_cached_tokens),
        "cold_ttft_ms": cold.median,
        "cold_ttft_ms_interval": [cold.low, cold.high],
        "hit_ttft_ms": hit.median,
        "hit_ttft_ms_interval": [hit.low, hit.high],
        "fresh_ttft_ms": fresh.median,
        "ratio": ratio.median,
        "ratio_interval": [ratio.low, ratio.high],
        "num_samples": len(samples.hit_ms),
    }


def hand_over_row(samples: HandOverSamples) -> dict[str, Any]:
    """Return the figures of one prompt length on one plane. Any: numbers and intervals."""
    hand_over = Estimate.of("hand-over", samples.hand_over_ms)
    beyond = [
        took - trip for took, trip in zip(samples.hand_over_ms, samples.round_trip_ms, strict=True)
    ]
    return {
        "plane": samples.plane,
        "prompt_tokens": samples.num_prompt_tokens,
        "handover_ms": hand_over.median,
        "handover_ms_interval": [hand_over.low, hand_over.high],
        "round_trip_ms": statistics.median(samples.round_trip_ms),
        "beyond_round_trip_ms": statistics.median(beyond),
        "prefill_ms": statistics.median(samples.prefill_ms),
        "ttft_ms": statistics.median(samples.ttft_ms),
        "num_samples": len(samples.hand_over_ms),
    }


def hit_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the hits as text. Any: as above."""
    lines = [
        f"{'prompt':>7} {'cached':>7} {'cold ms':>9} {'hit ms':>9} {'fresh ms':>9} {'ratio':>7}"
    ]
    lines += [
        f"{row['prompt_tokens']:>7} {row['cached_tokens']:>7} {row['cold_ttft_ms']:>9.2f}"
        f" {row['hit_ttft_ms']:>9.2f} {row['fresh_ttft_ms']:>9.2f} {row['ratio']:>7.3f}"
        f"  {row['ratio_interval'][0]:>7.3f} {row['ratio_interval'][1]:>7.3f}"
        for row in rows
    ]
    return "\n".join(lines)


def hand_over_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the hand-overs as text. Any: as above."""
    lines = [
        f"{'plane':<14} {'prompt':>7} {'ms':>8} {'round trip':>11} {'beyond it':>10} {'prefill':>9}"
    ]
    lines += [
        f"{row['plane']:<14} {row['prompt_tokens']:>7} {row['handover_ms']:>8.2f}"
        f" {row['round_trip_ms']:>11.2f} {row['beyond_round_trip_ms']:>10.2f}"
        f" {row['prefill_ms']:>9.1f}"
        for row in rows
    ]
    return "\n".join(lines)


def as_json(
    hits: Sequence[dict[str, Any]],
    hand_overs: Sequence[dict[str, Any]],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """Return what `--json` writes. Any: as above."""
    return {
        "machine": describe_machine(),
        "settings": settings,
        "rows": list(hits),
        "handovers": list(hand_overs),
    }
