"""Samples of what clients send and hear."""

import msgspec

from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.common import Accepted, Failed, Rejected, Timings
from slipstream.shared.messages.generate import (
    AddressedFrame,
    Cancel,
    Cancelled,
    ChatMessage,
    Choice,
    Completion,
    ContentPart,
    EchoedPrompt,
    Finished,
    FrameBatch,
    GenerateRequest,
    Resume,
    TokenFrame,
)
from slipstream.shared.messages.packed import PackedInts

from .parts import (
    DECODE_WORKER,
    LOGPROBS,
    MODEL,
    NUMERICS,
    REQUEST,
    SMALL_USAGE,
    TIMINGS,
    TOKENS,
    TRACE,
    USAGE,
)

ECHOED_PROMPT = EchoedPrompt(token_ids=TOKENS, text="Grüße", logprobs=[None, LOGPROBS, LOGPROBS])
FRAME = TokenFrame(REQUEST, 2, 17, 64, TOKENS, 'Grüße, "世界" \n', choice=1, logprobs=[LOGPROBS])
SMALL_FRAME = TokenFrame(REQUEST, 0, 0, 0, PackedInts(), "")

SAMPLES: dict[str, tuple[msgspec.Struct, msgspec.Struct]] = {
    "accepted": (
        Accepted(REQUEST, 2, DECODE_WORKER, MODEL, 42, 12, TRACE),
        Accepted(REQUEST),
    ),
    "rejected": (
        Rejected(REQUEST, 2, "no_seat", "32 of 32 seats are taken"),
        Rejected(REQUEST, 2, "draining"),
    ),
    "failed": (
        Failed("invalid_request", "top_p: too high", REQUEST, 2, "top_p", 1.0, 250, TRACE, 1),
        Failed("overloaded", "the queue is full"),
    ),
    "generate_request": (
        GenerateRequest(
            prompt="Once upon a time",
            messages=[
                ChatMessage("system", "Be brief.", "operator", "call_0", [{"id": "call_0"}]),
                ChatMessage("user", [ContentPart("text", "Hello"), ContentPart("image")]),
            ],
            prompt_token_ids=TOKENS,
            model=MODEL,
            stream=True,
            max_tokens=64,
            min_tokens=2,
            ignore_eos=True,
            stop=["\n\n", "Ende"],
            stop_token_ids=[0, 2],
            skip_special_tokens=False,
            temperature=0.75,
            top_p=0.875,
            top_k=40,
            min_p=0.0625,
            repetition_penalty=1.125,
            presence_penalty=0.25,
            frequency_penalty=-0.25,
            logit_bias={"7": -100.0},
            seed=42,
            n=2,
            best_of=3,
            logprobs=True,
            top_logprobs=2,
            echo=True,
            prompt_logprobs=1,
            response_format={"type": "json_object"},
            guided_json={"type": "object", "properties": {"a": {"type": "integer"}}},
            guided_regex="[a-z]+",
            guided_choice=["yes", "no"],
            tools=[{"type": "function", "function": {"name": "f"}}],
            tool_choice="auto",
            request_key="order-17",
            tenant="acme",
            priority=3,
            deadline_ms=30_000,
            cache_salt="salt",
            adapter="poet",
            route="remote",
            speculation="off",
            num_speculative_tokens=3,
            allow_other_numerics=True,
            client_request_id="mine-1",
            latency_class="interactive",
            speculation_mode="rejection",
            batch_inbox="_INBOX.abc.batches",
        ),
        GenerateRequest(),
    ),
    "token_frame": (FRAME, SMALL_FRAME),
    "frame_batch": (
        FrameBatch([msgspec.Raw(encode(FRAME)), msgspec.Raw(encode(SMALL_FRAME))]),
        FrameBatch([]),
    ),
    "addressed_frame": (
        AddressedFrame("17", msgspec.Raw(encode(FRAME))),
        AddressedFrame("", msgspec.Raw(encode(SMALL_FRAME))),
    ),
    "finished": (
        Finished(
            REQUEST,
            2,
            "stop",
            USAGE,
            TIMINGS,
            20,
            96,
            choice=1,
            seed=42,
            stop_reason="Ende",
            model=MODEL,
            route="remote",
            route_reason="long_prompt",
            numerics=NUMERICS,
            trace_id=TRACE,
            prompt=ECHOED_PROMPT,
        ),
        Finished(REQUEST, 0, "length", SMALL_USAGE, Timings(), 3, 11),
    ),
    "completion": (
        Completion(
            REQUEST,
            2,
            [
                Choice(
                    text="Ja",
                    token_ids=TOKENS,
                    finish_reason="stop",
                    index=1,
                    stop_reason=2,
                    logprobs=[LOGPROBS],
                    seed=43,
                )
            ],
            USAGE,
            TIMINGS,
            seed=42,
            model=MODEL,
            route="local",
            route_reason="short_prompt",
            numerics=NUMERICS,
            trace_id=TRACE,
            prompt=ECHOED_PROMPT,
        ),
        Completion(
            REQUEST,
            0,
            [Choice(text="", token_ids=PackedInts(), finish_reason="abort")],
            SMALL_USAGE,
            Timings(),
        ),
    ),
    "cancel": (Cancel(REQUEST, 2, "deadline", 41), Cancel(REQUEST)),
    "cancelled": (Cancelled(REQUEST, "decoding", was_ended_here=True), Cancelled(REQUEST)),
    "resume": (
        Resume(REQUEST, "_INBOX.abc.2", 17, 1, 41, 64),
        Resume(REQUEST, "_INBOX.abc.2"),
    ),
}
