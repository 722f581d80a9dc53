"""What the codec does with other versions' messages, with clients' mistakes and with noise."""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.shared.bus.subjects import TOPICS
from slipstream.shared.errors import InvalidRequestError, ProtocolError
from slipstream.shared.ids import RequestId
from slipstream.shared.messages.codec import (
    ClientAnswer,
    decode_batch,
    decode_request,
    decoder_of,
    encode,
    encoding_of,
)
from slipstream.shared.messages.common import Accepted, Failed
from slipstream.shared.messages.draft import DraftJob
from slipstream.shared.messages.generate import Cancel, GenerateRequest, TokenFrame
from slipstream.shared.messages.kv import Known, Match
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.reports import PhaseEvent
from slipstream.shared.messages.sampling import TokenLogprobs

REQUEST = RequestId("r1")
FRAME = TokenFrame(REQUEST, 1, 2, 3, PackedInts([4, 5]), "text")

uint32s = st.lists(st.integers(0, 2**32 - 1), max_size=8)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
floats = st.floats(allow_nan=False, allow_infinity=False)
logprobs = st.builds(
    TokenLogprobs,
    st.integers(0, 2**32 - 1),
    floats,
    st.lists(st.integers(0, 2**32 - 1), max_size=3),
    st.lists(floats, max_size=3),
)
frames = st.builds(
    TokenFrame,
    texts,
    st.integers(0, 2**31),
    st.integers(0, 2**31),
    st.integers(0, 2**31),
    st.builds(PackedInts, uint32s),
    texts,
    st.integers(0, 64),
    st.none() | st.lists(logprobs, max_size=2),
)
# Bytes that look like msgpack or JSON at first sight, so that more than the first byte is read.
noise = st.binary(max_size=64) | st.builds(
    bytes.__add__,
    st.sampled_from([b"\x81", b"\x92", b"\x95", b"\xdc", b"\xde\x00", b"{", b'{"type":', b"["]),
    st.binary(max_size=64),
)


def test_frame_is_an_array_in_msgpack_and_a_map_in_json() -> None:
    as_msgpack = msgspec.msgpack.decode(encode(FRAME))
    as_json = json.loads(encode(FRAME, "json"))

    assert ["token_frame", "r1", 1, 2, 3] == as_msgpack[:5]
    assert ("token_frame", "text") == (as_json["type"], as_json["text"])


def test_ids_are_packed_bytes_in_msgpack_and_a_list_in_json() -> None:
    message = Match(PackedInts([1, 256]), "layout")

    assert b"\x01\0\0\0\0\x01\0\0" == msgspec.msgpack.decode(encode(message))["token_ids"]
    assert [1, 256] == json.loads(encode(message, "json"))["token_ids"]


def test_ids_are_taken_as_a_list_in_msgpack_too() -> None:
    payload = msgspec.msgpack.encode({"prompt_token_ids": [1, 2]})

    assert [1, 2] == decode_request(payload).prompt_token_ids


@pytest.mark.parametrize(
    ("payload", "encoding"),
    [
        (b"", "json"),
        (b" {}", "json"),
        (b"\xef\xbb\xbf{}", "json"),
        (b"\x80", "msgpack"),
        (b"\x9f", "msgpack"),
        (b"\xdc\0\1\0", "msgpack"),
        (b"\xdf\0\0\0\0", "msgpack"),
        (b"\xa1x", "json"),
        (b"\xc0", "json"),
    ],
)
def test_encoding_is_told_by_the_first_byte(payload: bytes, encoding: str) -> None:
    assert encoding == encoding_of(payload)


@given(uint32s)
def test_packed_ints_survive_their_bytes(values: list[int]) -> None:
    packed = PackedInts(values)

    assert packed == PackedInts.from_bytes(packed.to_bytes())
    assert values == list(packed)
    assert len(packed.to_bytes()) == 4 * len(values)


@given(uint32s, st.sampled_from(["json", "msgpack"]))
def test_packed_ints_survive_the_wire(values: list[int], encoding: Any) -> None:
    message = Match(PackedInts(values), "layout")

    assert message == decoder_of(Match).decode(encode(message, encoding))


@given(frames, st.sampled_from(["json", "msgpack"]))
def test_frames_survive_the_wire(frame: TokenFrame, encoding: Any) -> None:
    assert frame == decoder_of(ClientAnswer).decode(encode(frame, encoding))


@pytest.mark.parametrize("values", [[-1], [2**32], [1.5], ["1"], [None], "12"])
def test_packed_ints_refuse_what_is_no_uint32(values: Any) -> None:
    with pytest.raises(ValueError, match="expected integers in"):
        PackedInts(values)


def test_packed_ints_refuse_a_part_of_an_integer() -> None:
    with pytest.raises(ValueError, match="5 bytes"):
        PackedInts.from_bytes(b"12345")


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_unknown_field_of_a_map_is_ignored(encoding: str) -> None:
    codec = msgspec.json if encoding == "json" else msgspec.msgpack
    payload = codec.encode({"type": "cancel", "request_id": "r1", "new_in_v2": {"a": [1]}})

    assert Cancel(REQUEST) == decoder_of(Cancel).decode(payload)


def test_unknown_field_of_a_request_is_ignored() -> None:
    assert "x" == decode_request(b'{"prompt": "x", "new_in_v2": {"a": [1]}}').prompt


@pytest.mark.parametrize(
    "message",
    [
        # All of these set every field, so that a further item is one of a later version.
        msgspec.structs.replace(FRAME, choice=1, logprobs=[]),
        PhaseEvent("w", 1, 2, REQUEST, 3, "waiting"),  # type: ignore[arg-type] # a short id
        DraftJob([]),
    ],
)
def test_unknown_trailing_item_of_an_array_is_ignored(message: Any) -> None:
    payload = msgspec.msgpack.encode([*msgspec.msgpack.decode(encode(message)), {"new": "in v2"}])

    kind: Any = type(message)

    assert message == decoder_of(kind).decode(payload)


def test_absent_trailing_items_of_an_array_take_their_defaults() -> None:
    payload = msgspec.msgpack.encode(msgspec.msgpack.decode(encode(FRAME))[:7])

    assert FRAME == decoder_of(ClientAnswer).decode(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type": "from_v2"}',
        b'{"request_id": "r1"}',
        b'{"type": 1}',
        b"[]",
        b'["token_frame"]',
        b"7",
        b"",
        msgspec.msgpack.encode({"type": "from_v2"}),
        msgspec.msgpack.encode(["from_v2", 1]),
        msgspec.msgpack.encode({"type": "token_frame"}),
        msgspec.msgpack.encode(7),
        encode(Cancel(REQUEST)),
        encode(FRAME)[:-1],
        encode(FRAME) + b"\0",
    ],
)
def test_what_is_no_message_of_the_kind_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="expected Accepted, TokenFrame, Finished"):
        decoder_of(ClientAnswer).decode(payload)


def test_array_where_only_maps_are_known_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="expected Cancel"):
        decoder_of(Cancel).decode(encode(FRAME))


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"prompt": 5}, "prompt"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"route": "fastest"}, "route"),
        ({"messages": [{"role": "user"}, {"role": 1}]}, "messages[1].role"),
        ({"messages": [{"content": "no role"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": 1}]}]}, "messages[0].content[0].type"),
        ({"prompt_token_ids": [1, -1]}, "prompt_token_ids"),
        ({"prompt_token_ids": [1, 2**32]}, "prompt_token_ids"),
        ({"prompt_token_ids": [1, 0.5]}, "prompt_token_ids"),
        ({"prompt_token_ids": "1 2"}, "prompt_token_ids"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"logit_bias": {"7": "high"}}, "logit_bias[...]"),
    ],
)
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_wrong_type_names_its_field(payload: Any, field: str, encoding: str) -> None:
    codec = msgspec.json if encoding == "json" else msgspec.msgpack
    with pytest.raises(InvalidRequestError) as caught:
        decode_request(codec.encode(payload))

    assert field == caught.value.field
    assert str(caught.value).startswith(f"{field}: ")


def test_key_of_a_wrong_type_names_its_field() -> None:
    payload = msgspec.msgpack.encode({"response_format": {7: "a"}})
    with pytest.raises(InvalidRequestError) as caught:
        decode_request(payload)

    assert "response_format" == caught.value.field


def test_nan_reaches_admission_which_names_the_field() -> None:
    """Some clients print NaN though JSON has none; a byte offset would not help anybody."""
    request = decode_request(b'{"prompt": "x", "temperature": NaN, "top_p": -Infinity}')

    assert request.temperature is not None
    assert math.isnan(request.temperature)
    assert -math.inf == request.top_p


@pytest.mark.parametrize("field", ["max_tokens", "prompt", "prompt_token_ids"])
def test_nan_where_no_float_belongs_names_the_field(field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode_request(b'{"temperature": NaN, "%s": NaN}' % field.encode())

    assert field == caught.value.field


@pytest.mark.parametrize("number", [b"1e999", b"9" * 5000])
def test_huge_number_is_refused(number: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        decode_request(b'{"max_tokens": %s}' % number)


@pytest.mark.parametrize("payload", [b"", b"  \n", b"\0"])
def test_empty_message_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode_request(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"prompt": "x"',
        b"{'prompt': 'x'}",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\\udc00 \\ud800"}',
        b'{"prompt": "x"} trailing',
        b"hello",
        b"\x81\xa6prompt\xa1\xff",
        b"\x81\xa6prompt",
        b"\x81\xa6prompt\xa1x\0",
    ],
)
def test_malformed_message_says_so(payload: bytes) -> None:
    """Half a surrogate pair is malformed: no tokenizer and no wire could take it."""
    with pytest.raises(InvalidRequestError, match="malformed"):
        decode_request(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"response_format": ' + b'{"a":' * 200_000,
        b'{"response_format": ' + b'{"a":' * 200_000 + b"1" + b"}" * 200_001,
        b'{"temperature": NaN, "response_format": ' + b'{"a":' * 200_000,
        b"\x81\xafresponse_format" + b"\x81\xa1a" * 200_000,
    ],
)
def test_deep_nesting_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode_request(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xaestop_token_ids\xdd\xff\xff\xff\xff\x01",
        b"\x81\xb0prompt_token_ids\xdd\xff\xff\xff\xff\x01",
        b"\x81\xb0prompt_token_ids\xc6\xff\xff\xff\xff\x01",
        b"\x81\xa6prompt\xdb\xff\xff\xff\xffx",
    ],
)
def test_huge_count_costs_nothing(payload: bytes) -> None:
    """A count is a promise: nothing is reserved for what doesn't follow."""
    with pytest.raises(InvalidRequestError, match="truncated"):
        decode_request(payload)


@given(noise)
@settings(max_examples=300)
def test_noise_is_never_more_than_an_invalid_request(payload: bytes) -> None:
    try:
        request = decode_request(payload)
    except InvalidRequestError:
        return

    assert isinstance(request, GenerateRequest)


@given(noise, st.sampled_from([topic.message for topic in TOPICS] + [ClientAnswer]))
@settings(max_examples=500)
def test_noise_is_never_more_than_a_protocol_error(payload: bytes, kind: Any) -> None:
    try:
        message = decoder_of(kind).decode(payload)
    except ProtocolError:
        return

    assert isinstance(message, kind)


@given(st.binary(max_size=8), st.integers(0, 200))
def test_damaged_frame_is_never_more_than_a_protocol_error(noise: bytes, at: int) -> None:
    payload = encode(FRAME)
    at %= len(payload)
    try:
        message = decoder_of(ClientAnswer).decode(payload[:at] + noise + payload[at + len(noise) :])
    except ProtocolError:
        return

    assert isinstance(message, TokenFrame | Accepted | Failed)


LARGE = b"1" + b"0" * 30


@pytest.mark.parametrize("beside", [b"", b'"temperature": NaN, '])
def test_a_whole_number_that_no_message_can_pass_on_names_the_field(beside: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="more than 64 bits") as refused:
        decode_request(b'{"prompt": "x", %s"seed": %s}' % (beside, LARGE))

    assert "seed" == refused.value.field


def test_a_whole_number_that_is_too_large_is_no_message_of_a_service() -> None:
    with pytest.raises(ProtocolError, match="first_block_id holds a whole number"):
        decoder_of(Known).decode(b'{"type": "known", "first_block_id": %s}' % LARGE)


def test_many_digits_in_a_text_are_no_number() -> None:
    request = decode_request(b'{"prompt": "%s", "seed": 18446744073709551615}' % LARGE)

    assert 2**64 - 1 == request.seed


@pytest.mark.parametrize(
    "payload",
    [
        b"\x92\xabframe_batch\x91\x93\xafaddressed_frame\xa2\xff\xfe\xc0",
        b"\x92\xabframe_batch\x91\x93\xafaddressed_frame\xa1x" + b"\x91" * 100_000 + b"\1",
        b"\x92\xabframe_batch\xdd\xff\xff\xff\xff",
    ],
    ids=["no UTF-8", "nested deeply", "a huge count"],
)
def test_a_batch_of_frames_that_is_none_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="expected FrameBatch"):
        decode_batch(payload)
