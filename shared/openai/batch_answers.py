"""What we answer, as a body of the OpenAI API. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.shared.messages.common import Failed, Usage
from slipstream.shared.messages.generate import Choice, Completion
from slipstream.shared.messages.sampling import TokenLogprobs
from slipstream.shared.openai.batch_requests import CHAT, Endpoint
from slipstream.shared.openai.statuses import status_of, type_of

# Any: JSON of every shape
Json = dict[str, Any]


def answer_body(endpoint: Endpoint, completion: Completion, created: int) -> Json:
    """Return the body of an answer; `created` is its Unix time."""
    is_chat = endpoint == CHAT
    make = _chat_choice if is_chat else _text_choice
    prefix = "chatcmpl" if is_chat else "cmpl"
    return {
        "id": f"{prefix}-{completion.request_id}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": created,
        "model": completion.model or "",
        "system_fingerprint": completion.numerics,
        "choices": [make(each) for each in completion.choices],
        "usage": usage_body(completion.usage),
    }


def usage_body(usage: Usage) -> Json:
    """Return the counts of tokens."""
    num_accepted = usage.num_accepted_tokens
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_output_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": num_accepted,
            "rejected_prediction_tokens": max(
                0, usage.num_tested_tokens - usage.num_accepted_tokens
            ),
        },
    }


def error_body(failed: Failed) -> Json:
    """Return the body of an error."""
    return {
        "error": {
            "message": failed.message,
            "type": type_of(status_of(failed.code)),
            "param": failed.field,
            "code": failed.code,
        }
    }


def _chat_choice(choice: Choice) -> Json:
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": None if choice.logprobs is None else {"content": _content(choice.logprobs)},
        "finish_reason": choice.finish_reason,
    }


def _text_choice(choice: Choice) -> Json:
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": None if choice.logprobs is None else _columns(choice.logprobs),
        "finish_reason": choice.finish_reason,
    }


def _content(logprobs: Sequence[TokenLogprobs]) -> list[Json]:
    return [
        {
            **_entry(each.token_id, each.logprob),
            "top_logprobs": [_entry(*pair) for pair in _top(each)],
        }
        for each in logprobs
    ]


def _columns(logprobs: Sequence[TokenLogprobs]) -> Mapping[str, list[Any]]:  # Any: as above
    return {
        "tokens": [_name(each.token_id) for each in logprobs],
        "token_logprobs": [each.logprob for each in logprobs],
        "top_logprobs": [
            {_name(token_id): logprob for token_id, logprob in _top(each)} for each in logprobs
        ],
        "text_offset": [],
    }


def _top(logprobs: TokenLogprobs) -> list[tuple[int, float]]:
    return list(zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True))


def _entry(token_id: int, logprob: float) -> Json:
    return {"token": _name(token_id), "logprob": logprob, "bytes": None}


def _name(token_id: int) -> str:
    """Name a token by its id: its text is known to who has the vocabulary, as workers do."""
    return f"token_id:{token_id}"
