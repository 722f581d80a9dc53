"""How `slipstream trace` shows a trace. Pure, but for files."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from slipstream.services.cli.main import run_command
from slipstream.services.cli.trace_page import page
from slipstream.services.cli.trace_waterfall import list_lines, rows_of, waterfall
from slipstream.shared.telemetry.otlp_json import to_otlp
from slipstream.shared.telemetry.trace_summary import summary_of
from tests.unit.telemetry.traces import REQUEST, START_NS, TRACE, span, trace


def test_children_stand_behind_their_parents() -> None:
    assert [
        ("process generate", 0),
        ("attempt", 1),
        ("kv lease", 2),
        ("process decode", 2),
    ] == [(row.span.name, row.depth) for row in rows_of(trace())]


def test_spans_without_their_parent_are_shown_at_the_top() -> None:
    late = [each for each in trace() if each.name != "attempt"]

    assert [0, 0, 0] == [row.depth for row in rows_of(late)]


def test_spans_that_are_each_other_s_parents_end() -> None:
    """No service of ours sends such; whoever does must not hang a reader."""
    assert [] == rows_of([span(1, "a", "kv", (0, 1), 2), span(2, "b", "kv", (0, 1), 1)])


def test_bars_are_where_spans_were() -> None:
    lines = waterfall(trace(), 120)
    bars = {
        name: re.search(rf"{name} +[\d.]+ +[\d.]+  ( *)(█*)", text)
        for name in ("process generate", "attempt", "process decode", "kv lease")
        for text in lines
        if f" {name} " in text
    }
    widths = {name: (len(bar[1]), len(bar[2])) for name, bar in bars.items() if bar is not None}
    whole = widths["process generate"][1]

    assert all(len(line) <= 120 for line in lines[2:])
    assert 0 == widths["process generate"][0]
    assert whole * 0.1 == pytest.approx(widths["attempt"][0], abs=1)
    assert whole * 0.2 == pytest.approx(widths["process decode"][0], abs=1)
    assert whole * 0.7 == pytest.approx(widths["process decode"][1], abs=2)


def test_what_answers_why_is_told_and_everything_where_it_is_asked_for() -> None:
    brief, full = (
        "\n".join(waterfall(trace(), 120)),
        "\n".join(waterfall(trace(), 120, has_attributes=True)),
    )

    assert f"trace {TRACE}, request {REQUEST}: 100.0 ms, 4 spans of scheduler, kv, decode" in brief
    assert "steps 7" in brief
    assert "! the worker <died>" in brief
    assert "is_greedy" not in brief
    assert "is_greedy = True" in full
    assert "@ first_token after 10.0 ms" in full


class _Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        assert not any(name in ("src", "href") or name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_needs_nothing_else_and_runs_nothing_that_a_span_says() -> None:
    spans = [
        *trace(),
        span(5, "<script>alert(1)</script>", "<b>", (1, 2), 1, attributes={"<i>": "<u>"}),
    ]
    found = _Elements(page(spans))

    assert {"script", "b", "i", "u", "link", "img"}.isdisjoint(found.opened)
    assert 5 == found.opened.count("details")
    for shown in ("<script>alert(1)</script>", "<i> = <u>", "the worker <died>", TRACE):
        assert shown in found.text


def test_a_trace_is_one_line_of_a_list() -> None:
    (heading, line) = list_lines([summary_of(TRACE, trace())])

    assert heading.startswith("trace")
    for shown in (TRACE, REQUEST, "100.0", "scheduler, kv, decode", "! the worker <died>"):
        assert shown in line


def test_a_summary_has_no_name_until_the_root_has_come() -> None:
    assert "process generate" == summary_of(TRACE, trace()).name
    assert "" == summary_of(TRACE, [each for each in trace() if each.parent_span_id]).name
    assert START_NS == summary_of(TRACE, trace()).start_ns


def test_an_exported_file_is_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(to_otlp(trace())))
    html = tmp_path / "trace.html"

    assert 0 == run_command(["trace", "--file", str(file), "--attributes"])
    assert "is_greedy = True" in capsys.readouterr().out
    assert 0 == run_command(["trace", "--file", str(file), "--html", str(html)])
    assert "" == capsys.readouterr().out
    assert page(trace()) == html.read_text()
    assert 0 == run_command(["trace", "--file", str(file), "--json"])
    assert to_otlp(trace()) == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't be read (No such file"),
        (b"{", "holds no JSON"),
        (b"{}", "no OTLP in JSON"),
        (b'{"resourceSpans": []}', "no spans"),
    ],
)
def test_a_file_that_holds_no_trace_is_one_line(
    content: bytes | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.json"
    if content is not None:
        file.write_bytes(content)

    assert 1 == run_command(["trace", "--file", str(file)])
    error = capsys.readouterr().err
    assert said in error
    assert 1 == error.count("\n")
