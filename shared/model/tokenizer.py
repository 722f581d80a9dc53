"""Text to tokens and back, with control tokens only where the model's own template puts them."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import tokenizers

from slipstream.shared.errors import InvalidRequestError, ModelError
from slipstream.shared.model.chat_template import ChatTemplate, Message
from slipstream.shared.model.control_text import ControlTokens, Marks
from slipstream.shared.model.detokenizer import (
    ByteTextStream,
    TextStream,
    WindowTextStream,
    bytes_of_token,
    context_of,
)

_MAX_TOKEN_ID = 2**32 - 1  # the library refuses what does not fit
_SPECIAL_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")


class _NamedTemplate(msgspec.Struct, frozen=True):
    name: str
    template: str


class _TokenText(msgspec.Struct, frozen=True):
    content: str


class _TokenizerConfig(msgspec.Struct, frozen=True):
    chat_template: str | list[_NamedTemplate] | None = None
    bos_token: str | _TokenText | None = None
    eos_token: str | _TokenText | None = None
    pad_token: str | _TokenText | None = None
    unk_token: str | _TokenText | None = None
    sep_token: str | _TokenText | None = None
    cls_token: str | _TokenText | None = None


class Tokenizer:
    """The tokenizer of a model directory. Safe to share between threads."""

    def __init__(self, model_dir: Path) -> None:
        content = _read(model_dir / "tokenizer.json")
        self._tokenizer = _load(content, model_dir)
        # The same again, blind to control tokens: for text that only looks like them.
        self._plain = _load(content, model_dir)
        self._plain.encode_special_tokens = True
        self._special_ids = frozenset(
            token_id
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        self._control = ControlTokens(self._tokenizer)
        self._template = _load_template(model_dir)
        decoder = json.loads(content).get("decoder") or {}
        self.is_byte_level = decoder.get("type") == "ByteLevel"
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        # Two models with one fingerprint speak of the same tokens.
        self.fingerprint = hashlib.sha256(content).hexdigest()[:16]

    def is_special(self, token_id: int) -> bool:
        """Say whether the id is a control token."""
        return token_id in self._special_ids

    @property
    def has_chat_template(self) -> bool:
        """Whether the model was made for conversations."""
        return self._template is not None

    @property
    def knows_tools(self) -> bool:
        """Whether the model's template tells it of tools."""
        return self._template is not None and self._template.knows_tools

    @property
    def marks_tool_calls(self) -> bool:
        """Whether the model puts a call of a tool between <tool_call> and </tool_call>."""
        return self.knows_tools and self._template is not None and self._template.marks_tool_calls

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Encode raw text, in which control tokens count; BOS where the model's rule adds it."""
        return _encode(self._tokenizer, text, "prompt", add_special_tokens=add_special_tokens)

    def encode_chat(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None
    ) -> list[int]:
        """
        Render the messages and encode them, control tokens and BOS from the template alone.

        What looks like a control token inside a message is text. Raises InvalidRequestError.
        """
        if self._template is None:
            raise InvalidRequestError("messages", "the model has no chat template; send a prompt")
        marks = Marks(self._control)
        rendered = self._template.render(
            [marks.mark(message) for message in messages],
            # One level down: its keys are the client's, not ours.
            None if tools is None else [marks.mark(tool, 1) for tool in tools],
        )
        if marks.is_empty:
            # The template wrote every control token in it.
            return _encode(self._tokenizer, rendered, "messages", add_special_tokens=False)
        token_ids: list[int] = []
        for piece, control_id in self._control.split(rendered):
            if control_id is not None:
                token_ids.append(control_id)
                continue
            text = marks.restore(piece)
            token_ids += _encode(self._plain, text, "messages", add_special_tokens=False)
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text; ids that name no token are left out."""
        known = [token_id for token_id in token_ids if 0 <= token_id <= _MAX_TOKEN_ID]
        return self._tokenizer.decode(known, skip_special_tokens=skip_special_tokens)

    def open_text_stream(
        self, prompt_token_ids: Sequence[int], *, skip_special: bool
    ) -> TextStream:
        """Return a stream of the text after the prompt; it must be pushed visible tokens only."""
        context = context_of(self, prompt_token_ids, skip_special=skip_special)
        if self.is_byte_level:
            return ByteTextStream(self.bytes_of, context)
        return WindowTextStream(self._decode_all, context)

    def bytes_of(self, token_id: int) -> bytes:
        """Return what a token of a byte-level vocabulary stands for, nothing if there is none."""
        token = self._tokenizer.id_to_token(token_id)
        return b"" if token is None else bytes_of_token(token)

    @property
    def max_token_id(self) -> int:
        """The last id; those before it may have gaps."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def is_visible(self, token_id: int, *, skip_special: bool) -> bool:
        """Say whether the token adds to the text: it exists and is no skipped control token."""
        if skip_special and token_id in self._special_ids:
            return False
        return 0 <= token_id <= _MAX_TOKEN_ID and self._tokenizer.id_to_token(token_id) is not None

    def _decode_all(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} can't be read: {error.strerror}") from error


def _load(content: bytes, model_dir: Path) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{model_dir / 'tokenizer.json'} is damaged: {error}") from error
    # Some files carry the settings of somebody's training run.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _load_template(model_dir: Path) -> ChatTemplate | None:
    path = model_dir / "tokenizer_config.json"
    config = _TokenizerConfig()
    if path.is_file():
        try:
            config = msgspec.json.decode(_read(path), type=_TokenizerConfig)
        except msgspec.MsgspecError as error:
            raise ModelError(f"{path}: {error}") from error
    template_path = model_dir / "chat_template.jinja"
    if template_path.is_file():
        source: str | None = _read(template_path).decode(errors="replace")
    elif isinstance(config.chat_template, list):
        named = {entry.name: entry.template for entry in config.chat_template}
        source = named.get("default")
    else:
        source = config.chat_template
    return None if source is None else ChatTemplate(source, _special_tokens(config))


def _special_tokens(config: _TokenizerConfig) -> dict[str, str]:
    tokens = {role: getattr(config, role) for role in _SPECIAL_ROLES}
    return {
        role: token.content if isinstance(token, _TokenText) else token
        for role, token in tokens.items()
        if token is not None
    }


def _encode(
    tokenizer: tokenizers.Tokenizer, text: str, field: str, *, add_special_tokens: bool
) -> list[int]:
    try:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    except (UnicodeEncodeError, TypeError) as error:
        raise InvalidRequestError(field, "not valid Unicode") from error
