"""Fields of bodies that are not served, by HTTP or a batch: refused by name, or not used. Pure."""

from collections.abc import Mapping
from typing import Any

# Known to OpenAI's or vLLM's clients, without a say in the tokens that come: taken, not used.
IGNORED = frozenset(
    (
        *("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
        *("request_id", "guided_decoding_backend", "timeout"),
    )
)

# Refused, unless they are null or one of these values, which ask for what is done anyway.
# Any, here and below: whatever JSON a client sent.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    # OpenAI.
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
    # vLLM and others.
    "add_generation_prompt": (True,),
    "add_special_tokens": (True, False),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "guided_grammar": (),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}


def is_refused(name: str, value: Any) -> bool:
    """Tell whether a field would change the answer in a way that is not served."""
    neutral = REFUSED.get(name)
    return (
        neutral is not None
        and value is not None
        and not any(_is_same(value, each) for each in neutral)
    )


def _is_same(value: Any, neutral: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
