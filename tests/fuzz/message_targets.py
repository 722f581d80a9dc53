"""Decoders of `shared/messages`: every subject both ways, each in both encodings."""

import re
from collections.abc import Callable
from types import UnionType
from typing import Any, get_args

import msgspec

from slipstream.shared.bus.subjects import KV_VERBS, TOPICS
from slipstream.shared.client.stream_assembler import StreamAssembler
from slipstream.shared.errors import InvalidRequestError, ProtocolError
from slipstream.shared.messages.codec import (
    ClientAnswer,
    decode_batch,
    decode_request,
    decoder_of,
    encode,
    encode_batch,
    unknown_fields,
)
from slipstream.shared.messages.generate import GenerateRequest, TokenFrame
from slipstream.shared.messages.kv import ArenaHello, ArenaWelcome
from slipstream.shared.messages.reports import LeaderRecord, WorkerRecord

from .target import Target, golden_json, golden_msgpack

# Any: a union is no type for the checker.
_MORE: dict[str, Any] = {
    "registry": WorkerRecord,
    "leader": LeaderRecord,
    "hello": ArenaHello,
    "welcome": ArenaWelcome,
}


def targets() -> list[Target]:
    """Return them all."""
    kinds = {
        topic.name + suffix: kind
        for topic in TOPICS
        for suffix, kind in (("", topic.message), (".reply", topic.reply))
        if kind is not None and kind is not GenerateRequest
    }
    kinds |= {f"kv.{verb}.reply": reply for verb, reply in KV_VERBS.values()}
    kinds |= _MORE
    made = [_request_target("json"), _request_target("msgpack"), _batch_target(), _frames_target()]
    for name, kind in kinds.items():
        made.append(_target(f"{name}.msgpack", kind, "msgpack"))
        if _has_maps(kind):
            made.append(_target(f"{name}.json", kind, "json"))
    return made


def _has_maps(kind: Any) -> bool:  # Any: as above
    return any(not each.__struct_config__.array_like for each in _members(kind))


def _members(kind: Any) -> tuple[Any, ...]:  # Any: as above
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _target(name: str, kind: Any, encoding: Any) -> Target:  # Any: as above
    decode = decoder_of(kind).decode

    def check(payload: bytes) -> object:
        return _check_again(decode, decode(payload))

    names = [_snake(each.__name__) for each in _members(kind)]
    samples = _samples(names, encoding)
    return Target(f"message.{name}", check, (ProtocolError,), samples, encoding, 0.3)


def _samples(names: list[str], encoding: str) -> list[bytes]:
    """Return messages of these names; those that clients never see are frozen in msgpack alone."""
    packed = golden_msgpack(*names)
    if encoding == "msgpack":
        return packed
    trees = [msgspec.msgpack.decode(each) for each in packed]
    made = [msgspec.json.encode(_listed(tree)) for tree in trees if isinstance(tree, dict)]
    return made or golden_json("accepted")


def _listed(tree: Any) -> Any:  # Any: JSON
    """Write packed ids as lists, as JSON has them."""
    match tree:
        case bytes():
            return list(memoryview(tree).cast("I")) if len(tree) % 4 == 0 else list(tree)
        case dict():
            return {key: _listed(value) for key, value in tree.items()}
        case list():
            return [_listed(value) for value in tree]
        case _:
            return tree


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _check_again(decode: Callable[[bytes], Any], message: Any) -> Any:  # Any: as above
    """What was taken can be said again, and is understood as the same."""
    written = encode(message)
    assert written == encode(decode(written)), f"{message} changes on its way"
    if not type(message).__struct_config__.array_like:
        encode(message, "json")  # where NaN is null: not the same for every message
    return message


def _request_target(encoding: Any) -> Target:  # Any: a literal
    def check(payload: bytes) -> object:
        assert isinstance(unknown_fields(payload), list)
        request = decode_request(payload)
        return _check_again(decode_request, request)

    samples = {"json": golden_json, "msgpack": golden_msgpack}[encoding]("generate_request")
    return Target(f"request.{encoding}", check, (InvalidRequestError,), samples, encoding, 3)


def _batch_target() -> Target:
    frame = decoder_of(ClientAnswer).decode

    def check(payload: bytes) -> object:
        frames = decode_batch(payload)
        written = encode_batch((each.box, bytes(each.frame)) for each in frames)
        again = decode_batch(written)
        assert [each.box for each in frames] == [each.box for each in again]
        for each in frames:
            frame(bytes(each.frame))
        return frames

    whole = encode_batch(("_INBOX.a.1", each) for each in golden_msgpack("token_frame", "finished"))
    samples = [whole, *golden_msgpack("frame_batch")]
    return Target("frame_batch", check, (ProtocolError,), samples, "msgpack", 3)


def _frames_target() -> Target:
    """Frames into the assembler of a client, which is asked to believe any index."""
    decode = decoder_of(ClientAnswer).decode

    def check(payload: bytes) -> object:
        frame = decode(payload)
        if not isinstance(frame, TokenFrame):
            return frame
        assembler = StreamAssembler()
        assembler.take_new(frame)
        assembler.take_new(frame)
        assert len(assembler.text) == assembler.text_length
        return frame

    samples = golden_msgpack("token_frame", "finished")
    return Target("stream", check, (ProtocolError,), samples, "msgpack", 2)
