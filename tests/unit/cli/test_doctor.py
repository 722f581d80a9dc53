"""What `slipstream doctor` makes of what it found. Pure."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.services.cli import doctor_machine, doctor_stack
from slipstream.services.cli.doctor_findings import Finding, lines_of
from slipstream.services.cli.doctor_machine import MachineFacts
from slipstream.services.cli.doctor_stack import StackFacts, Storage
from slipstream.shared.bus.discovery import Ping
from slipstream.shared.ids import WorkerId
from slipstream.shared.messages.common import Role
from slipstream.shared.messages.reports import WorkerRecord

_MIB, _GIB = 2**20, 2**30
_MACHINE = MachineFacts(
    levels=("avx2", "portable"),
    kernel_problem=None,
    num_cores=2,
    available_memory=8 * _GIB,
    shared_memory_dir=Path("/dev/shm"),
    shared_memory=4 * _GIB,
    cache_dir=Path("/cache"),
    cache_disk=50 * _GIB,
    num_descriptors=20_000,
    clock_source="tsc",
    model="smollm2-135m",
    model_dir=Path("/cache/models/smollm2"),
    model_damage=None,
    packed_formats=("int8", "int4"),
)


def _ping(role: str, version: str = "0.1.0") -> Ping:
    return Ping(name=f"slipstream-{role}", id=f"{role}-1", version=version, metadata={"role": role})


def _record(number: int, role: Role = "decode", numerics: str = "int8/kv-int8/x") -> WorkerRecord:
    return WorkerRecord(
        worker_id=WorkerId(f"{role}-{number}"),
        role=role,
        epoch=1,
        protocol=1,
        version="0.1.0",
        model="smollm2-135m",
        numerics=numerics,
    )


_STACK = StackFacts(
    url="nats://127.0.0.1:4222",
    server_info={"version": "2.15.1", "headers": True},
    round_trip_ms=0.4,
    clock_offset_s=0.01,
    storage=Storage(0, 128 * _MIB, _MIB, _GIB),
    services=[_ping("scheduler"), _ping("kv"), _ping("decode"), _ping("prefill")],
    records=[_record(1), _record(2, "prefill"), _record(3, "kv", "")],
)


def _unwell(findings: list[Finding]) -> dict[str, Finding]:
    return {each.about: each for each in findings if each.verdict != "ok"}


def test_all_is_well_where_nothing_is_wrong() -> None:
    assert {} == _unwell([*doctor_machine.examine(_MACHINE), *doctor_stack.examine(_STACK)])


@pytest.mark.parametrize(
    ("changed", "about", "verdict", "said"),
    [
        ({"kernel_problem": "they were not built"}, "kernels", "warning", "C++ compiler"),
        ({"available_memory": _GIB // 2}, "memory", "warning", "0.5 GiB available; 1 GiB"),
        ({"available_memory": None}, "memory", "warning", "doesn't say"),
        ({"shared_memory": 64 * _MIB}, "shared memory", "warning", "--shm-size"),
        ({"cache_disk": _GIB}, "disk", "warning", "--cache-dir"),
        ({"num_descriptors": 256}, "files", "warning", "ulimit -n"),
        ({"clock_source": "hpet"}, "clock", "warning", "hpet"),
        ({"model_dir": None}, "model", "warning", "model pull smollm2-135m"),
        ({"model_damage": "vocab has gone"}, "model", "problem", "vocab has gone"),
    ],
)
def test_what_is_wrong_with_a_machine_is_said_with_its_remedy(
    changed: dict[str, Any],  # Any: fields of all types
    about: str,
    verdict: str,
    said: str,
) -> None:
    found = _unwell(doctor_machine.examine(replace(_MACHINE, **changed)))

    assert {about} == set(found)
    assert verdict == found[about].verdict
    assert found[about].remedy
    assert said in f"{found[about].found} {found[about].remedy}"


@pytest.mark.parametrize(
    ("changed", "about", "verdict", "said"),
    [
        (
            {"server_info": {"version": "2.9.10", "headers": True}},
            "NATS",
            "problem",
            "2.11 or later",
        ),
        ({"server_info": {"version": "2.15.1"}}, "NATS", "problem", "no_header_support"),
        ({"max_payload": _MIB}, "payload", "problem", "max_payload: 8MB"),
        ({"round_trip_ms": 30.0}, "distance", "warning", "30.0 ms"),
        ({"storage": None, "storage_problem": "not enabled"}, "JetStream", "problem", "enable it"),
        ({"storage": Storage(0, -1, 95, 100)}, "JetStream", "problem", "nearly full"),
        ({"clock_offset_s": -3.0}, "clocks", "warning", "-3.00 s"),
        ({"services": []}, "services", "warning", "slipstream up"),
        ({"services": [_ping("kv"), _ping("decode")]}, "services", "problem", "no scheduler"),
        (
            {"services": [*_STACK.services, _ping("draft", "0.0.9")]},
            "versions",
            "warning",
            "0.0.9: draft-1; 0.1.0: ",
        ),
        ({"records": []}, "models", "warning", "no worker"),
        (
            {"records": [_record(1), _record(2, numerics="int4/kv-int8/x")]},
            "models",
            "warning",
            "int4/kv-int8/x",
        ),
    ],
)
def test_what_is_wrong_with_a_stack_is_said_with_its_remedy(
    changed: dict[str, Any],  # Any: as above
    about: str,
    verdict: str,
    said: str,
) -> None:
    found = _unwell(doctor_stack.examine(replace(_STACK, **changed)))

    assert {about} == set(found)
    assert verdict == found[about].verdict
    assert found[about].remedy
    assert said in f"{found[about].found} {found[about].remedy}"


def test_a_storage_without_limits_is_never_full() -> None:
    unlimited = replace(_STACK, storage=Storage(_GIB, -1, _GIB, -1))

    assert {} == _unwell(doctor_stack.examine(unlimited))


def test_each_finding_is_a_line_with_its_remedy_below() -> None:
    findings = [
        Finding("cores", "ok", "2"),
        Finding("JetStream", "problem", "not enabled", "enable it"),
    ]

    assert [
        "ok   cores      2",
        "BAD  JetStream  not enabled",
        "                -> enable it",
    ] == lines_of(findings)
