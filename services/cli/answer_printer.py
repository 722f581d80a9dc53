"""Print an answer: text as it comes, one JSON object, a short summary."""

import sys
from collections.abc import Callable, Sequence

import msgspec

from slipstream.services.cli.prompt_options import PromptOptions
from slipstream.shared.bus.bus import Bus
from slipstream.shared.client.answers import Answer, AnswerStream, complete


async def fetch(bus: Bus, prompt: str, ask: PromptOptions) -> Answer:
    """Ask, print the text unless JSON is wanted, and return the answer. A cancel is passed on."""
    request = ask.request(prompt)
    if not ask.stream:
        answer = await complete(bus, request, timeout_s=ask.timeout)
        _write(answer.text, ask)
    else:
        stream = AnswerStream(bus, request, timeout_s=ask.timeout)
        answer = await print_pieces(stream, lambda piece: _write(piece, ask))
    _write("\n", ask)
    return answer


async def print_pieces(stream: AnswerStream, write: Callable[[str], None]) -> Answer:
    """Write a stream as it comes, and return its answer. A cancel is passed on."""
    try:
        async for piece in stream.pieces():
            write(piece)
    finally:
        if stream.answer is None:
            # Interrupted, or an error of ours: nobody waits for the rest.
            await stream.cancel()
    assert stream.answer is not None, "a stream ends with an answer or raises"
    return stream.answer


def as_json(answer: Answer, services: Sequence[str] | None = None) -> str:
    """Return the object that --json prints; `services` only where spans were received."""
    fields: dict[str, object] = {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "route": answer.route,
        "ttft_ms": answer.timings.ttft_ms,
        "tpot_ms": answer.timings.tpot_ms,
        "trace_id": answer.trace_id,
    }
    if services is not None:
        fields["services"] = list(services)
    return msgspec.json.encode(fields).decode()


def summary(answer: Answer, services: Sequence[str] | None = None) -> str:
    """Return the lines that follow a streamed answer."""
    timings, usage = answer.timings, answer.usage
    tpot = "-" if timings.tpot_ms is None else f"{timings.tpot_ms:.1f} ms"
    rows = [
        ("time to first token", f"{timings.ttft_ms:.1f} ms"),
        ("time per output token", tpot),
        ("tokens", f"{usage.num_prompt_tokens} prompt, {usage.num_output_tokens} output"),
        ("finish reason", answer.finish_reason),
        ("route", answer.route or "-"),
    ]
    if services is not None:
        rows.append(("services", ", ".join(services) or "-"))
    rows.append(("trace id", answer.trace_id or "-"))
    return "\n".join(f"{name:<22}{value}" for name, value in rows)


def _write(text: str, ask: PromptOptions) -> None:
    if not ask.json:
        sys.stdout.write(text)
        sys.stdout.flush()
