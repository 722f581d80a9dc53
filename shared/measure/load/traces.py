"""Traces of what real services were asked: when, and how long each prompt and each answer was."""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from slipstream.shared.errors import SlipstreamError

_CSV_COLUMNS = ("ContextTokens", "GeneratedTokens")
_CSV_TIME = "TIMESTAMP"
_FITTING = 0.99  # of the requests fit without being cut
# A few requests of a trace that come with us.
SLICE = Path(__file__).parents[1] / "slices" / "azure_conv_2023.csv"
HASHED_TOKENS = 512  # of a prompt, for each of the hash ids of a Mooncake trace


class TraceError(SlipstreamError):
    """A file that is no trace; names the line, if there is one to blame."""

    code = "bad_trace"

    def __init__(self, path: Path, line: int | None, reason: str) -> None:
        where = f"{path}, line {line}" if line is not None else str(path)
        super().__init__(f"{where}: {reason}")


@dataclass(frozen=True, slots=True)
class Lengths:
    """A request, by its numbers of tokens."""

    num_prompt_tokens: int
    num_output_tokens: int

    @property
    def num_tokens(self) -> int:
        """Both together."""
        return self.num_prompt_tokens + self.num_output_tokens

    def without_output(self) -> "Lengths":
        """Return the prompt with the one token that it gives."""
        return Lengths(self.num_prompt_tokens, 1)

    def times(self, factor: float) -> "Lengths":
        """Return both lengths scaled and rounded, at least 1."""
        scaled = (self.num_prompt_tokens * factor, self.num_output_tokens * factor)
        return Lengths(*(max(1, round(each)) for each in scaled))

    def within(self, max_num_tokens: int) -> "Lengths":
        """Return both lengths, in proportion no longer than fits."""
        if self.num_tokens <= max_num_tokens:
            return self
        both = (self.num_prompt_tokens, self.num_output_tokens)
        return Lengths(*(max(1, each * max_num_tokens // self.num_tokens) for each in both))


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """A request of a trace."""

    lengths: Lengths
    at_s: float | None = None  # since any moment; None where the trace has no times
    hash_ids: tuple[int, ...] = ()  # one for each 512 tokens: equal ids, an equal prompt so far


class _MooncakeRow(msgspec.Struct):
    input_length: int
    output_length: int
    timestamp: float | None = None  # milliseconds
    hash_ids: tuple[int, ...] = ()


def read_requests(path: Path) -> list[TracedRequest]:
    """
    Return the requests of a trace in their order.

    It is a CSV with the columns of the Azure LLM inference trace, or JSON lines with the keys of
    the Mooncake trace. Raises TraceError.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TraceError(path, None, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise TraceError(path, None, f"is no text ({error})") from error
    is_json = bool(lines) and lines[0].lstrip().startswith("{")
    found = list((_mooncake if is_json else _azure)(path, lines))
    if not found:
        raise TraceError(path, None, "holds no requests")
    return found


def read_trace(path: Path) -> list[Lengths]:
    """Return the lengths of a trace's requests in their order. Raises TraceError."""
    return [each.lengths for each in read_requests(path)]


def _mooncake(path: Path, lines: Sequence[str]) -> Iterator[TracedRequest]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=_MooncakeRow)
        except msgspec.MsgspecError as error:
            raise TraceError(path, number, str(error)) from error
        lengths = _lengths(path, number, row.input_length, row.output_length)
        at_s = None if row.timestamp is None else row.timestamp / 1000
        yield TracedRequest(lengths, at_s, row.hash_ids)


def _azure(path: Path, lines: Sequence[str]) -> Iterator[TracedRequest]:
    reader = csv.DictReader(lines)
    missing = [name for name in _CSV_COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise TraceError(
            path, 1, f"neither JSON lines nor a CSV with a column {' and '.join(missing)}"
        )
    for row in reader:
        try:
            prompt, output = (int(row[name] or "") for name in _CSV_COLUMNS)
            time = row.get(_CSV_TIME)
            at_s = _seconds(time) if time else None
        except ValueError as error:
            raise TraceError(path, reader.line_num, str(error)) from error
        yield TracedRequest(_lengths(path, reader.line_num, prompt, output), at_s)


def _seconds(time: str) -> float:
    moment = datetime.fromisoformat(time)
    # Without a zone it is a clock that never changes: only differences matter.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _lengths(path: Path, line: int, num_prompt_tokens: int, num_output_tokens: int) -> Lengths:
    if min(num_prompt_tokens, num_output_tokens) < 0:
        raise TraceError(path, line, "a length is negative")
    return Lengths(num_prompt_tokens, num_output_tokens)


def fitting_factor(trace: Sequence[Lengths], max_num_tokens: int) -> float:
    """Return by what all lengths are multiplied so that the 99th percentile of totals just fits."""
    totals = sorted(each.num_tokens for each in trace)
    return max_num_tokens / max(1, totals[math.ceil(_FITTING * len(totals)) - 1])


def fit(trace: Sequence[Lengths], max_num_tokens: int) -> list[Lengths]:
    """Return the trace scaled by the fitting factor; the longest hundredth is cut to what fits."""
    factor = fitting_factor(trace, max_num_tokens)
    return [each.times(factor).within(max_num_tokens) for each in trace]
