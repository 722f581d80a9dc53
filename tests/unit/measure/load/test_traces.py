"""Traces are read as they were published, and scaled to what a model can hold."""

from pathlib import Path

import pytest

from slipstream.shared.measure.load.traces import (
    Lengths,
    TracedRequest,
    TraceError,
    fit,
    fitting_factor,
    read_requests,
    read_trace,
)

_AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.9951690,396,109"""
_MOONCAKE = """{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}

{"timestamp": 3000, "input_length": 7322, "output_length": 0, "hash_ids": []}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_AZURE, [Lengths(374, 44), Lengths(396, 109)]),
        (_MOONCAKE, [Lengths(6758, 500), Lengths(7322, 0)]),
    ],
    ids=["Azure", "Mooncake"],
)
def test_a_trace_is_read_in_its_order(tmp_path: Path, text: str, expected: list[Lengths]) -> None:
    path = tmp_path / "trace"
    path.write_bytes(text.encode())

    assert expected == read_trace(path)


def test_times_and_prefixes_are_read_where_a_trace_has_them(tmp_path: Path) -> None:
    azure, mooncake, bare = (tmp_path / name for name in ("azure", "mooncake", "bare"))
    azure.write_text(_AZURE)
    mooncake.write_text(_MOONCAKE)
    bare.write_text("ContextTokens,GeneratedTokens\n5,6\n")

    first, second = read_requests(azure)
    assert first.at_s is not None
    assert second.at_s is not None
    assert pytest.approx(4.314579, abs=1e-6) == second.at_s - first.at_s
    assert [(0.0, (0, 1)), (3.0, ())] == [(e.at_s, e.hash_ids) for e in read_requests(mooncake)]
    assert [TracedRequest(Lengths(5, 6))] == read_requests(bare)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "line 1: neither JSON lines nor a CSV"),
        (b"when,what\n1,2\n", "a column ContextTokens and GeneratedTokens"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no requests"),
        (b"ContextTokens,GeneratedTokens\n5,6\n5,six\n", "line 3: .*'six'"),
        (b"ContextTokens,GeneratedTokens\n5\n", "line 2: "),
        (_AZURE.replace("2023-11-16 18:15:50", "noon").encode(), "line 3: .*noon"),
        (b'{"input_length": 5, "output_length": 6, "timestamp": "now"}', "line 1: .*timestamp"),
        (b"ContextTokens,GeneratedTokens\n5,-1\n", "line 2: a length is negative"),
        (b'{"input_length": 5}\n', "line 1: .*output_length"),
        (b'{"input_length": 5, "output_length": 6}\n{"input', "line 2: "),
        (b"\xff\xfe\x00", "is no text"),
    ],
)
def test_what_is_no_trace_is_refused_by_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=reason) as raised:
        read_trace(path)
    assert str(path) in str(raised.value)


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"missing\.csv: No such file"):
        read_trace(tmp_path / "missing.csv")


def test_ninety_nine_of_a_hundred_fit_by_scaling_and_one_is_cut() -> None:
    """The longest keeps its proportions; the others are all multiplied by the same."""
    trace = [Lengths(300, 100)] * 99 + [Lengths(3000, 1000)]

    assert 0.5 == fitting_factor(trace, 200)
    assert [Lengths(150, 50)] * 100 == fit(trace, 200)


def test_short_requests_are_made_longer_where_there_is_room() -> None:
    assert [Lengths(6000, 2000)] == fit([Lengths(30, 10)], 8000)


@pytest.mark.parametrize("max_num_tokens", [2, 3, 7, 64, 1000])
def test_no_length_is_less_than_one_and_no_sum_too_large(max_num_tokens: int) -> None:
    trace = [Lengths(p, o) for p in (0, 1, 2, 900, 5000) for o in (0, 1, 3, 700)]

    for each in fit(trace, max_num_tokens):
        assert min(each.num_prompt_tokens, each.num_output_tokens) >= 1
        assert each.num_tokens <= max_num_tokens
