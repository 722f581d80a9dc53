"""The in-process receiver: what it keeps, refuses and passes on."""

import gzip
import http.client
import socket
import time
import zlib
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from slipstream.shared.telemetry import names, received
from slipstream.shared.telemetry import receiver as receiver_module
from slipstream.shared.telemetry.receiver import TraceReceiver


@pytest.fixture
def receiver() -> Iterator[TraceReceiver]:
    with TraceReceiver(max_num_traces=3) as receiver:
        yield receiver


def _body(trace_id: str, *, name: str = "root", parent: str = "") -> bytes:
    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add()
    service = of_resource.resource.attributes.add(key="service.name")
    service.value.string_value = "someone"
    span = of_resource.scope_spans.add().spans.add(
        name=name,
        trace_id=bytes.fromhex(trace_id),
        span_id=b"\1" * 8,
        parent_span_id=bytes.fromhex(parent),
        start_time_unix_nano=1,
        end_time_unix_nano=2,
    )
    attribute = span.attributes.add(key="nested")
    attribute.value.kvlist_value.values.add(key="deep").value.bool_value = True
    span.attributes.add(key="nothing")
    return request.SerializeToString()


def _post(receiver: TraceReceiver, body: bytes, path: str = "/v1/traces", **headers: str) -> int:
    port = int(receiver.endpoint.rsplit(":", 1)[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        connection.request("POST", path, body, {"content-type": "application/x-protobuf", **named})
        return connection.getresponse().status
    finally:
        connection.close()


def test_span_is_kept_as_it_arrived(receiver: TraceReceiver) -> None:
    assert 200 == _post(receiver, _body("a" * 32))

    [span] = receiver.spans("a" * 32)
    assert ("root", "someone", "01" * 8, None) == (
        span.name,
        span.service,
        span.span_id,
        span.parent_span_id,
    )
    assert {"nested": {"deep": True}, "nothing": None} == span.attributes
    assert not span.is_error


@pytest.mark.parametrize(
    ("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_bodies_are_read(
    receiver: TraceReceiver, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    assert 200 == _post(receiver, compress(_body("a" * 32)), content_encoding=encoding)
    assert 1 == len(receiver.spans("a" * 32))


def test_oldest_trace_goes_first(receiver: TraceReceiver) -> None:
    for digit in "abcd":
        _post(receiver, _body(digit * 32))

    assert ["b" * 32, "c" * 32, "d" * 32] == receiver.trace_ids()
    assert [] == receiver.spans("a" * 32)


def test_bodies_that_cannot_be_are_refused(
    receiver: TraceReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "MAX_BODY_BYTES", 1000)
    monkeypatch.setattr(received, "MAX_BODY_BYTES", 1000)

    assert 400 == _post(receiver, b"\xff" * 10)
    assert 400 == _post(receiver, b"no gzip", content_encoding="gzip")
    assert 400 == _post(receiver, gzip.compress(_body("a" * 32))[:-6], content_encoding="gzip")
    assert 404 == _post(receiver, b"", path="/v1/metrics")
    assert 411 == _post(receiver, b"", content_length="many")
    assert 413 == _post(receiver, b"x" * 1001)
    assert 413 == _post(receiver, b"", content_length="9" * 5000)
    assert 413 == _post(receiver, gzip.compress(b"x" * 5000), content_encoding="gzip")
    assert 415 == _post(receiver, b"{}", content_type="application/json")
    assert 415 == _post(receiver, b"", content_encoding="br")
    assert not receiver.trace_ids()


def test_waiting_for_a_root_ends_in_time(receiver: TraceReceiver) -> None:
    _post(receiver, _body("a" * 32, name="attempt", parent="b" * 16))

    assert not receiver.wait_for_root("a" * 32, 0.05)


def test_request_of_a_client_that_traces_has_a_root_too(receiver: TraceReceiver) -> None:
    _post(receiver, _body("a" * 32, name=names.SPAN_PROCESS_GENERATE, parent="b" * 16))

    assert receiver.wait_for_root("a" * 32, 0)


def test_bodies_are_passed_on_as_they_came() -> None:
    with TraceReceiver() as other:
        receiver = TraceReceiver(forward_to=other.traces_endpoint)
        receiver.start()
        body = gzip.compress(_body("a" * 32))
        _post(receiver, body, content_encoding="gzip", authorization="Bearer x")
        receiver.stop()

        assert 1 == len(receiver.spans("a" * 32))
        assert 1 == len(other.spans("a" * 32))


def test_other_endpoint_that_is_away_loses_nothing_here() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        receiver = TraceReceiver(forward_to=f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces")
        receiver.start()
        for _ in range(100):
            assert 200 == _post(receiver, _body("a" * 32))
        started = time.monotonic()
        receiver.stop(0.2)

    assert time.monotonic() - started < 1
    assert 100 == len(receiver.spans("a" * 32))


def test_endpoint_is_known_only_while_it_listens() -> None:
    receiver = TraceReceiver()
    with pytest.raises(RuntimeError, match="not been started"):
        _ = receiver.endpoint
    receiver.stop()
