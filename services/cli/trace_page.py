"""A trace as one HTML file that needs nothing else: no script, no address, light and dark. Pure."""

from collections.abc import Sequence
from html import escape

from slipstream.services.cli.trace_waterfall import notes_of, role_of, rows_of, title
from slipstream.shared.telemetry.received import ReceivedSpan

_NS_A_MS = 1e6
_HUES = {"gateway": 290, "scheduler": 215, "prefill": 160, "decode": 25, "draft": 60, "kv": 330}
_STYLE = """
:root { color-scheme: light dark; --line: #8884; font: 14px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 1200px; padding: 0 1rem; }
h1 { font-size: 1.1rem; } code { font-size: .85em; }
details { border-top: 1px solid var(--line); }
summary { display: grid; grid-template-columns: 22rem 5rem 5rem 1fr; gap: .6rem; padding: .25rem 0;
  align-items: center; cursor: pointer; list-style: none; }
summary span:nth-child(2), summary span:nth-child(3) { text-align: right;
  font-variant-numeric: tabular-nums; }
.track { position: relative; height: 1rem; }
.bar { position: absolute; top: 0; bottom: 0; min-width: 2px; border-radius: 2px;
  background: hsl(var(--hue) 60% 50%); }
.role { color: hsl(var(--hue) 60% 45%); font-weight: 600; }
.error { color: #c22; font-weight: 600; }
ul { margin: .2rem 0 .6rem 1rem; padding: 0; list-style: none; }
@media (max-width: 48rem) { summary { grid-template-columns: 1fr 4rem 4rem; }
  .track { grid-column: 1 / -1; } }
"""


def page(spans: Sequence[ReceivedSpan]) -> str:
    """Return the page of a trace that has spans."""
    start_ns = min(span.start_ns for span in spans)
    length_ns = max(1, max(span.end_ns for span in spans) - start_ns)
    rows = "\n".join(_row(row.span, row.depth, start_ns, length_ns) for row in rows_of(spans))
    heading = escape(title(spans))
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{heading}</title>
<style>{_STYLE}</style>
<h1>{heading}</h1>
<p>Times in milliseconds: when it began, and how long it took. A row opens.</p>
{rows}
</html>
"""


def _row(span: ReceivedSpan, depth: int, start_ns: int, length_ns: int) -> str:
    role = role_of(span)
    left = 100 * (span.start_ns - start_ns) / length_ns
    width = 100 * (span.end_ns - span.start_ns) / length_ns
    notes = "".join(f"<li><code>{escape(each)}</code></li>" for each in notes_of(span, is_all=True))
    mark = ' <span class="error">failed</span>' if span.is_error else ""
    return (
        f'<details style="--hue: {_HUES.get(role, 0)}"><summary>'
        f'<span style="padding-left: {depth}rem"><span class="role">{escape(role)}</span> '
        f"{escape(span.name)}{mark}</span>"
        f"<span>{(span.start_ns - start_ns) / _NS_A_MS:,.1f}</span>"
        f"<span>{(span.end_ns - span.start_ns) / _NS_A_MS:,.1f}</span>"
        f'<div class="track"><div class="bar" style="left: {left:.3f}%; width: {width:.3f}%">'
        f"</div></div></summary><ul>{notes}</ul></details>"
    )
