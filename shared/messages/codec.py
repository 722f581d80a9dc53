"""The one codec: msgpack between services, either towards clients, told apart by a byte."""

import json
import re
from collections.abc import Iterable
from functools import cache
from types import UnionType
from typing import Any, Generic, NoReturn, TypeVar, get_args

import msgspec

from slipstream.shared.errors import InvalidRequestError, ProtocolError
from slipstream.shared.messages.common import Accepted, Failed
from slipstream.shared.messages.generate import (
    AddressedFrame,
    Completion,
    Finished,
    FrameBatch,
    GenerateRequest,
    TokenFrame,
)
from slipstream.shared.messages.jobs import Encoding
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.whole_numbers import TOO_LARGE, field_too_large

T = TypeVar("T")

ClientAnswer = Accepted | TokenFrame | Finished | Failed | Completion


def _encode_packed(value: object) -> bytes:
    if isinstance(value, PackedInts):
        return value.to_bytes()
    raise NotImplementedError(f"no wire form for {type(value).__name__}")


def _encode_listed(value: object) -> list[int]:
    if isinstance(value, PackedInts):
        return list(value)
    raise NotImplementedError(f"no wire form for {type(value).__name__}")


def _decode_hook(wanted: type, value: object) -> PackedInts:
    if wanted is not PackedInts:
        raise NotImplementedError(f"no wire form for {wanted.__name__}")
    if isinstance(value, bytes):
        return PackedInts.from_bytes(value)
    if isinstance(value, list):
        return PackedInts(value)
    raise ValueError(f"expected a list of token ids, got {type(value).__name__}")


# Frames are the hot message: in msgpack an array, in JSON a map, from one definition.
_FRAME_FIELDS = msgspec.structs.fields(TokenFrame)
_FrameRow = msgspec.defstruct(
    "_FrameRow",
    [
        (
            field.name,
            field.type,
            msgspec.field(  # type: ignore[call-overload] # one of the two is NODEFAULT
                default=field.default, default_factory=field.default_factory
            ),
        )
        for field in _FRAME_FIELDS
    ],
    array_like=True,
    frozen=True,
    tag="token_frame",
)

_msgpack_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_packed)
_json_encoder = msgspec.json.Encoder(enc_hook=_encode_listed)


def encode(message: object, encoding: Encoding = "msgpack") -> bytes:
    """Return the message's bytes."""
    if encoding == "json":
        return _json_encoder.encode(message)
    if type(message) is TokenFrame:
        message = _FrameRow(*msgspec.structs.astuple(message))
    return _msgpack_encoder.encode(message)


# First bytes of msgpack: short arrays and maps hold their length, long ones say how it is written.
_ARRAY_BYTES = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})
_MAP_BYTES = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})


def encoding_of(payload: bytes) -> Encoding:
    """Tell msgpack (a map or an array) from JSON by the first byte; the rest counts as JSON."""
    is_msgpack = bool(payload) and payload[0] in _ARRAY_BYTES | _MAP_BYTES
    return "msgpack" if is_msgpack else "json"


def is_array(payload: bytes) -> bool:
    """Tell msgpack's hot messages, such as frames, from those that are maps, by the first byte."""
    return bool(payload) and payload[0] in _ARRAY_BYTES


def _members(kind: object) -> tuple[Any, ...]:  # Any: a union is no type for the checker
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _union(kinds: list[Any]) -> Any:  # Any: as above
    joined = kinds[0]
    for kind in kinds[1:]:
        joined = joined | kind
    return joined


class Decoder(Generic[T]):
    """Decode one message type or tagged union from JSON or msgpack."""

    def __init__(self, kind: Any) -> None:  # Any: a union is no type for the checker
        members = _members(kind)
        maps = [m for m in members if not m.__struct_config__.array_like]
        arrays = [m for m in members if m.__struct_config__.array_like]
        if TokenFrame in maps:
            arrays.append(_FrameRow)
        self._json = msgspec.json.Decoder(_union(maps), dec_hook=_decode_hook) if maps else None
        msgpack_maps = [m for m in maps if m is not TokenFrame]
        self._maps = (
            msgspec.msgpack.Decoder(_union(msgpack_maps), dec_hook=_decode_hook)
            if msgpack_maps
            else None
        )
        self._arrays = (
            msgspec.msgpack.Decoder(_union(arrays), dec_hook=_decode_hook) if arrays else None
        )
        self._names = ", ".join(m.__name__ for m in members)

    def decode(self, payload: bytes) -> T:
        """Return the message. Raises ProtocolError for anything else."""
        if not payload:
            self._refuse("the message is empty")
        if encoding_of(payload) == "json":
            decoder: Any = self._json  # Any: three decoder classes without a common type
        else:
            decoder = self._arrays if is_array(payload) else self._maps
        if decoder is None:
            self._refuse("it has another shape")
        try:
            message = decoder.decode(payload)
            field = field_too_large(payload, message) if decoder is self._json else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._refuse(str(error), error)
        if field is not None:
            self._refuse(f"{field} {TOO_LARGE}")
        if type(message) is _FrameRow:
            return TokenFrame(*msgspec.structs.astuple(message))  # type: ignore[return-value] # TokenFrame is in the union
        return message  # type: ignore[no-any-return] # the decoder is Any

    def _refuse(self, why: str, cause: BaseException | None = None) -> NoReturn:
        raise ProtocolError(f"expected {self._names}: {why}") from cause


# A batch in one go: what its encoded messages are is known.
_Batch = msgspec.defstruct(
    "_Batch",
    [("frames", list[AddressedFrame])],
    array_like=True,
    frozen=True,
    tag=FrameBatch.__struct_config__.tag,
)
_batch_decoder = msgspec.msgpack.Decoder(_Batch)


def encode_batch(frames: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the bytes of a batch of encoded frames, each with the box in which it belongs."""
    return encode(
        FrameBatch(
            [
                msgspec.Raw(_msgpack_encoder.encode(AddressedFrame(box, msgspec.Raw(frame))))
                for box, frame in frames
            ]
        )
    )


def decode_batch(payload: bytes) -> list[AddressedFrame]:
    """Return the frames of a batch. Raises ProtocolError for anything else."""
    try:
        frames: list[AddressedFrame] = _batch_decoder.decode(payload).frames  # type: ignore[attr-defined] # as made above
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"expected FrameBatch: {error}") from error
    return frames


@cache
def decoder_of(kind: Any) -> Decoder[Any]:  # Any: a union is no type for the checker
    """Return the decoder of a type or union, built once."""
    return Decoder(kind)


_request_json = msgspec.json.Decoder(GenerateRequest, dec_hook=_decode_hook)
_request_msgpack = msgspec.msgpack.Decoder(GenerateRequest, dec_hook=_decode_hook)
# Raw values: only the names are looked at.
_names_json = msgspec.json.Decoder(dict[str, msgspec.Raw])
_names_msgpack = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_REQUEST_FIELDS = frozenset(GenerateRequest.__struct_fields__)
_WHERE = re.compile(r"^(?P<what>.*) - at (?:`key` in )?`\$\.?(?P<path>.*)`$", re.DOTALL)


def decode_request(payload: bytes) -> GenerateRequest:
    """Decode what a client sent. Raises InvalidRequestError that names the field."""
    if not payload.strip():
        raise InvalidRequestError("", 'the message is empty; send for example {"prompt": "Hello"}')
    is_json = encoding_of(payload) == "json"
    try:
        request = (_request_json if is_json else _request_msgpack).decode(payload)
        return _checked(payload, request) if is_json else request
    except msgspec.ValidationError as error:
        raise _invalid(error) from error
    except RecursionError as error:
        raise InvalidRequestError("", "the message is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if is_json:
            return _decode_lenient(payload, error)
        raise InvalidRequestError("", f"malformed msgpack: {error}") from error


def unknown_fields(payload: bytes) -> list[str]:
    """Return the names in a request that are no field of one; none where it can't be told."""
    decoder = _names_json if encoding_of(payload) == "json" else _names_msgpack
    try:
        return [name for name in decoder.decode(payload) if name not in _REQUEST_FIELDS]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []  # what only the lenient way can read


def _decode_lenient(payload: bytes, strict_error: Exception) -> GenerateRequest:
    """
    Read JSON that holds NaN or Infinity, which some clients print though JSON has none.

    Admission then refuses the value by the field's name instead of by a byte offset.
    """
    try:
        request = msgspec.convert(json.loads(payload), GenerateRequest, dec_hook=_decode_hook)
        _json_encoder.encode(
            _checked(payload, request)
        )  # raises for half a surrogate pair, which no UTF-8 can hold
    except msgspec.ValidationError as error:
        raise _invalid(error) from error
    except (ValueError, RecursionError):
        raise InvalidRequestError("", f"malformed JSON: {strict_error}") from strict_error
    return request


def _checked(payload: bytes, request: GenerateRequest) -> GenerateRequest:
    field = field_too_large(payload, request)
    if field is not None:
        raise InvalidRequestError(field, TOO_LARGE)
    return request


def _invalid(error: msgspec.ValidationError) -> InvalidRequestError:
    found = _WHERE.match(str(error))
    if found is None:
        return InvalidRequestError("", str(error))
    return InvalidRequestError(found["path"], found["what"])
