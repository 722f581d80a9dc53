"""Build a `tokenizers.Tokenizer` and its tokenizer_config.json from the metadata of a GGUF file."""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split
from tokenizers.processors import TemplateProcessing

from slipstream.shared.errors import ModelError
from slipstream.shared.model.gguf_file import GgufFile


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def _byte_level() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> PreTokenizer:
    return Sequence([Digits(individual_digits=True), _byte_level()])


def _words(max_num_digits: int) -> PreTokenizer:
    """Split as Llama 3 and Qwen 2 do: they differ in how many digits stay together."""
    digits = r"\p{N}" if max_num_digits == 1 else rf"\p{{N}}{{1,{max_num_digits}}}"
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = Split(Regex(pattern), behavior="isolated")
    return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])


_LLAMA_3 = ("llama-bpe", "llama3", "llama-v3")
_PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {
    "default": _byte_level,
    "gpt-2": _byte_level,
    "smollm": _single_digits,
    "qwen2": lambda: _words(1),
    **{name: lambda: _words(3) for name in _LLAMA_3},
}


def build_tokenizer(file: GgufFile) -> Tokenizer:
    """Return the byte-level BPE the file describes. Raises ModelError for any other kind."""
    kind = file.metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelError(f"{file.path}: tokenizer.ggml.model {kind!r} is not supported, only gpt2")
    pre = file.metadata.get("tokenizer.ggml.pre", "default")
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise ModelError(f"{file.path}: tokenizer.ggml.pre {pre!r} is not supported, only {known}")
    tokens = _list_of(file, "tokens", str)
    tokenizer = Tokenizer(_build_bpe(file, tokens, ignore_merges=pre in _LLAMA_3))
    if pre == "qwen2":
        tokenizer.normalizer = NFC()
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = ByteLevelDecoder()
    _add_special_tokens(tokenizer, tokens, _list_of(file, "token_type", int))
    bos = special_token(file, "bos")
    if bos is not None and file.metadata.get("tokenizer.ggml.add_bos_token", pre in _LLAMA_3):
        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos} $B:1",
            special_tokens=[(bos, tokens.index(bos))],
        )
    return tokenizer


def tokenizer_config(file: GgufFile) -> dict[str, Any]:  # a JSON object
    """Return what tokenizer_config.json holds: special tokens and the chat template."""
    config: dict[str, Any] = {  # a JSON object
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.metadata.get("llama.context_length"),
        "bos_token": special_token(file, "bos"),
        "eos_token": special_token(file, "eos"),
        "unk_token": special_token(file, "unknown"),
        "pad_token": special_token(file, "padding"),
        "chat_template": file.metadata.get("tokenizer.chat_template"),
    }
    return {key: value for key, value in config.items() if value is not None}


def special_token_id(file: GgufFile, role: str) -> int | None:
    """Return the id that the file gives to "bos", "eos", "eot", "unknown" or "padding"."""
    token_id = file.metadata.get(f"tokenizer.ggml.{role}_token_id")
    if token_id is None:
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < len(_list_of(file, "tokens", str)):
        raise ModelError(f"{file.path}: {role}_token_id {token_id!r} names no token")
    return token_id


def special_token(file: GgufFile, role: str) -> str | None:
    """Return the text of the token with that role, or None."""
    token_id = special_token_id(file, role)
    return None if token_id is None else _list_of(file, "tokens", str)[token_id]


def _build_bpe(file: GgufFile, tokens: list[str], *, ignore_merges: bool) -> BPE:
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    if not tokens or len(vocabulary) != len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.tokens is empty or names a token twice")
    merges = [tuple(merge.split(" ")) for merge in _list_of(file, "merges", str)]
    try:
        return BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges)
    except Exception as error:  # the library raises bare Exception, ValueError or TypeError
        raise ModelError(f"{file.path}: tokenizer.ggml.merges can't be used: {error}") from error


def _add_special_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Make control tokens special, and leave user-defined ones whole but ordinary."""
    if len(types) != len(tokens):
        raise ModelError(f"{len(tokens)} tokens have {len(types)} types: tokenizer.ggml is damaged")
    special = (_TokenType.CONTROL, _TokenType.UNKNOWN)
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind in special, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in special or kind == _TokenType.USER_DEFINED
        ]
    )


def _list_of(file: GgufFile, name: str, kind: type) -> list[Any]:  # elements are of `kind`
    values = file.metadata.get(f"tokenizer.ggml.{name}")
    # One type holds for a whole GGUF array.
    if not isinstance(values, list) or (values and not isinstance(values[0], kind)):
        raise ModelError(f"{file.path}: tokenizer.ggml.{name} is no list of {kind.__name__}")
    return values
