"""Fields of a body that are not served: which are refused by name, and which mean nothing here."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import structlog

from slipstream.services.gateway.errors import invalid
from slipstream.shared.messages.whole_numbers import TOO_LARGE, field_too_large

log = structlog.get_logger()

BodyT = TypeVar("BodyT", bound=msgspec.Struct)

_MAX_NUM_WARNED = 256  # names of unknown fields: nobody may fill the memory, or the log
_MAX_NAME_CHARACTERS = 128

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

_WHERE_AT = " - at "
_MISSING = "Object missing required field `"


class BodyReader:
    """Reads bodies; warns of each unknown name once."""

    def __init__(self) -> None:
        self._warned: set[str] = set()
        self._names = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._decoders: dict[type, Any] = {}  # Any: decoders of several types

    def read(self, body: bytes, kind: type[BodyT]) -> BodyT:
        """Decode a body. Raises ApiError that names the field."""
        try:
            for name, raw in self._names.decode(body).items():
                if name not in kind.__struct_fields__:
                    self._look_at(name, raw)
            decoder = self._decoders.setdefault(kind, msgspec.json.Decoder(kind))
            read: BodyT = decoder.decode(body)
            too_large = field_too_large(body, read)
        except msgspec.ValidationError as error:
            raise _named(str(error)) from error
        except (msgspec.DecodeError, UnicodeError) as error:
            raise invalid("", f"the body is no valid JSON: {error}") from error
        except RecursionError as error:
            raise invalid("", "the body is nested too deeply") from error
        if too_large is not None:
            raise invalid(too_large, TOO_LARGE)
        return read

    def _look_at(self, name: str, raw: msgspec.Raw) -> None:
        """Refuse what would change the answer and isn't served; warn of what nobody knows."""
        if name in REFUSED:
            value = msgspec.json.decode(raw)
            if value is not None and not any(_is_same(value, each) for each in REFUSED[name]):
                raise invalid(name, "is not supported; leave it out")
        elif (
            name not in IGNORED and name not in self._warned and len(self._warned) < _MAX_NUM_WARNED
        ):
            self._warned.add(name)
            log.warning("unknown_field_ignored", field=name[:_MAX_NAME_CHARACTERS])


def _is_same(value: Any, neutral: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def _named(text: str) -> Exception:
    """Return the error of a wrong value, by the path in msgspec's message."""
    what, _, where = text.rpartition(_WHERE_AT)
    if not what:
        missing = text.removeprefix(_MISSING).partition("`")[0] if _MISSING in text else ""
        return invalid(missing, "is missing") if missing else invalid("", text)
    path = where.removeprefix("`key` in ").strip("`").removeprefix("$").removeprefix(".")
    return invalid(path, what)
