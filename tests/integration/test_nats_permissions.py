"""
Each key can do what its role needs, and nothing else: every role and every subject, on a server.

What is expected stands here by hand. It is not derived from the code that writes the permissions.
"""

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from slipstream.services.cli.nats_keys import KeySet, make_key_set
from slipstream.shared.bus import subjects
from slipstream.shared.bus.nats_access import NO_ACCESS, NatsAccess
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.permissions import NATS_ROLES, NatsRole
from slipstream.shared.errors import ConfigurationError
from tests.conftest import NatsServer

pytestmark = pytest.mark.nats

S, K, P, D, F, G, O, C, N = NATS_ROLES  # noqa: E741 # one letter each: scheduler ... nobody known
ALL = set(NATS_ROLES)
CLIENTS = {O, C, N}
ASKERS = {G, O, C, N}
NOBODY: set[NatsRole] = set()
API = "$JS.API"
BUCKETS = ("slipstream_workers", "slipstream_leader", "slipstream_results")
STREAMS = (*(f"KV_{bucket}" for bucket in BUCKETS), "slipstream_submit", "slipstream_dead")

# A subject, who may publish on it, and who may listen to it.
TOPICS = {
    "slipstream.v1.generate": (ASKERS, {S}),
    "slipstream.v1.generate.a-model": (ASKERS, {S}),
    "slipstream.v1.submit": (CLIENTS, NOBODY),
    "slipstream.v1.submit.a-model": (CLIENTS, NOBODY),
    "slipstream.v1.requeue.some-key": ({O}, NOBODY),
    "slipstream.v1.requeue.some-key.a-model": ({O}, NOBODY),
    "slipstream.v1.cancel.some-id": (ASKERS, {S}),
    "slipstream.v1.resume.some-id": (ASKERS, {S}),
    "slipstream.v1.prefill.some-id": ({S, O}, {P}),
    "slipstream.v1.decode.some-id": ({S, K, P, O}, {D}),
    "slipstream.v1.draft.some-id": ({S, D, O}, {F}),
    "slipstream.v1.report.some-id": ({K, P, D, F}, {S, D, G, O}),
    "slipstream.v1.event.kv": ({K}, {S, O}),
    "slipstream.v1.event.scheduler": ({S}, {S, O}),
    "slipstream.v1.event.decode": (NOBODY, {S, O}),
    "slipstream.v1.traces": ({O}, {O}),
    "slipstream.v1.dead.gave_up": ({S}, {O}),
    "slipstream.v1.kvdata.some-host": ({K}, {K}),
    "slipstream.v1.kv.some-host.match": ({P, D}, {K}),
    "slipstream.v1.kv.some-host.lease": ({P, D}, {K}),
    "slipstream.v1.kv.some-host.commit": ({P, D}, {K}),
    "slipstream.v1.kv.some-host.renew": ({P, D}, {K}),
    "slipstream.v1.kv.some-host.release": ({P, D}, {K}),
    "slipstream.v1.kv.some-host.adopt": ({D}, {K}),
    "slipstream.v1.kv.some-host.grant": ({D}, {K}),
    "slipstream.v1.kv.some-host.pull": ({D}, {K}),
    "slipstream.v1.kv.some-host.audit": ({O}, {K}),
    "slipstream.v1.kv.some-host.known": ({S, O}, {K}),
    "slipstream.v1.something.else": (NOBODY, NOBODY),
    "slipstream.v2.generate": (NOBODY, NOBODY),
    "something.else": (NOBODY, NOBODY),
    # Inboxes: read by their owners, written by those who answer in streams.
    "_INBOX.some.one": ({S, D}, {N}),
    "_INBOX_client.some.one": ({S, D}, {C}),
    "_INBOX_operator.some.one": ({S, D}, {O}),
    "_INBOX_gateway.some.one": ({S, D}, {G}),
    "_INBOX_scheduler.some.one": ({S, D}, {S}),
    "_INBOX_kv.some.one": ({K}, {K}),
    "_INBOX_prefill.some.one": (NOBODY, {P}),
    "_INBOX_decode.some.one": (NOBODY, {D}),
    "_INBOX_draft.some.one": (NOBODY, {F}),
    "_INBOX_other.some.one": (NOBODY, NOBODY),
    # Discovery.
    "$SRV.PING": ({O}, {S, K, P, D, F, G}),
    "$SRV.INFO": ({O}, {S, K, P, D, F, G}),
    "$SRV.STATS": ({G, O}, {S, K, P, D, F, G}),
    "$SRV.STATS.slipstream-decode": ({O}, {D}),
    "$SRV.STATS.slipstream-decode.some-id": ({O}, {D}),
    "$SRV.PING.slipstream-kv": ({O}, {K}),
    # What the server says and takes as its operator.
    "$SYS.REQ.SERVER.PING": (NOBODY, NOBODY),
    "$SYS.ACCOUNT.$G.CONNECT": (NOBODY, NOBODY),
    "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.a.b": (NOBODY, NOBODY),
}
JETSTREAM = {
    f"{API}.INFO": {O},
    f"{API}.STREAM.NAMES": {S, O, C, N},
    f"{API}.STREAM.LIST": {O},
    f"{API}.STREAM.CREATE.another": NOBODY,
    f"{API}.STREAM.INFO.another": NOBODY,
    f"{API}.ACCOUNT.PURGE.$G": NOBODY,
    **{f"{API}.STREAM.CREATE.{each}": {S} for each in STREAMS},
    **{f"{API}.STREAM.UPDATE.{each}": {S} for each in STREAMS},
    **{f"{API}.STREAM.DELETE.{each}": {O} for each in STREAMS},
    **{f"{API}.STREAM.PURGE.{each}": NOBODY for each in STREAMS},
    **{f"{API}.STREAM.SNAPSHOT.{each}": NOBODY for each in STREAMS},
    f"{API}.STREAM.INFO.KV_slipstream_workers": {S, K, P, D, F, O, C, N},
    f"{API}.STREAM.INFO.KV_slipstream_leader": {S, O},
    f"{API}.STREAM.INFO.KV_slipstream_results": {S, O, C, N},
    f"{API}.STREAM.INFO.slipstream_submit": {S, O, C, N},
    f"{API}.STREAM.INFO.slipstream_dead": {S, O},
    f"{API}.STREAM.MSG.GET.KV_slipstream_workers": NOBODY,
    f"{API}.STREAM.MSG.GET.KV_slipstream_leader": {S},
    f"{API}.STREAM.MSG.GET.KV_slipstream_results": NOBODY,
    f"{API}.STREAM.MSG.GET.slipstream_submit": NOBODY,
    f"{API}.STREAM.MSG.GET.slipstream_dead": {O},
    f"{API}.STREAM.MSG.DELETE.slipstream_submit": NOBODY,
    f"{API}.STREAM.MSG.DELETE.slipstream_dead": {O},
    f"{API}.DIRECT.GET.KV_slipstream_results": NOBODY,
    f"{API}.DIRECT.GET.slipstream_dead": {O},
    f"{API}.DIRECT.GET.KV_slipstream_workers.$KV.slipstream_workers.one": {S, D, O, C, N},
    f"{API}.DIRECT.GET.KV_slipstream_leader.$KV.slipstream_leader.one": {S, O},
    f"{API}.DIRECT.GET.KV_slipstream_results.$KV.slipstream_results.one": {S, O, C, N},
    f"{API}.CONSUMER.CREATE.KV_slipstream_workers": NOBODY,
    f"{API}.CONSUMER.CREATE.KV_slipstream_workers.one": NOBODY,
    f"{API}.CONSUMER.CREATE.KV_slipstream_leader.one": {S},
    f"{API}.CONSUMER.CREATE.KV_slipstream_results.one": NOBODY,
    f"{API}.CONSUMER.CREATE.slipstream_submit": NOBODY,
    f"{API}.CONSUMER.CREATE.slipstream_submit.one": {S},
    f"{API}.CONSUMER.CREATE.slipstream_dead.one": NOBODY,
    f"{API}.CONSUMER.DURABLE.CREATE.slipstream_submit.one": {S},
    f"{API}.CONSUMER.DURABLE.CREATE.slipstream_dead.one": NOBODY,
    f"{API}.CONSUMER.DELETE.slipstream_submit.scheduler": NOBODY,
    f"{API}.CONSUMER.DELETE.KV_slipstream_leader.one": {S},
    f"{API}.CONSUMER.INFO.slipstream_submit.scheduler": {S, O},
    f"{API}.CONSUMER.MSG.NEXT.slipstream_submit.scheduler": {S},
    "$JS.ACK.slipstream_submit.scheduler.1.1.1.1.0": {S},
    "$JS.ACK.slipstream_dead.scheduler.1.1.1.1.0": NOBODY,
    "$KV.slipstream_workers.one": {S, K, P, D, F} - {S},
    "$KV.slipstream_leader.one": {S},
    "$KV.slipstream_results.one": {S, O},
    "$KV.another.one": NOBODY,
}
EXPECTED = {**TOPICS, **{subject: (who, NOBODY) for subject, who in JETSTREAM.items()}}
WIDE = (">", "slipstream.>", "slipstream.v1.>", "_INBOX.>", "_INBOX_decode.>", "$JS.>", "$SRV.>")
WIDE_ALLOWED = {("_INBOX.>", N), ("_INBOX_decode.>", D)}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeySet:
    made = KeySet(tmp_path_factory.mktemp("nats") / "keys")
    make_key_set(made)
    return made


@pytest.fixture(scope="module")
def server(keys: KeySet) -> Iterator[NatsServer]:
    # Without JetStream: whoever may ask would have done it.
    with nats_with_keys(keys, has_jetstream=False) as made:
        yield made


@contextlib.contextmanager
def nats_with_keys(keys: KeySet, *, has_jetstream: bool) -> Iterator[NatsServer]:
    """Run a server with settings beside the keys: what is included is looked for from there."""
    made = NatsServer(keys.directory.parent, has_jetstream=has_jetstream)
    with made.settings_file.open("a", encoding="utf-8") as file:
        file.write(f'include "{keys.permissions_file.relative_to(keys.directory.parent)}"\n')
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Connected:
    """A client of a role that knows what it was denied."""

    def __init__(self, client: Client, denied: set[tuple[str, str]]) -> None:
        self.client = client
        self._denied = denied

    async def denied(self) -> set[tuple[str, str]]:
        """Return what the server has denied by now: it answers in the order of what it is sent."""
        # Twice: nats-py's ping overtakes what it still buffers.
        await self.client.flush()
        await self.client.flush()
        return self._denied


async def _connect(url: str, access: NatsAccess) -> Connected:
    denied: set[tuple[str, str]] = set()

    async def note(error: Exception) -> None:
        words = str(error).split()
        assert "violation" in words, str(error)
        denied.add((words[words.index("for") + 1], words[-1].strip('"')))

    client = await nats.connect(
        url, error_cb=note, allow_reconnect=False, **access.connect_options(url)
    )
    return Connected(client, denied)


@pytest.fixture(params=NATS_ROLES)
async def who(
    request: pytest.FixtureRequest, server: NatsServer, keys: KeySet
) -> AsyncIterator[tuple[NatsRole, Connected]]:
    role: NatsRole = request.param
    access = NO_ACCESS if role == N else keys.access(role)
    connected = await _connect(server.url, access)
    yield role, connected
    await connected.client.close()


async def test_publishing_is_allowed_as_the_table_says(who: tuple[NatsRole, Connected]) -> None:
    role, connected = who
    for subject in EXPECTED:
        await connected.client.publish(subject, b"")
    denied = await connected.denied()

    allowed = {each for each in EXPECTED if ("publish", each.lower()) not in denied}
    assert {subject for subject, (may, _) in EXPECTED.items() if role in may} == allowed


async def test_listening_is_allowed_as_the_table_says(who: tuple[NatsRole, Connected]) -> None:
    role, connected = who
    for subject in (*EXPECTED, *WIDE):
        await connected.client.subscribe(subject)
    denied = await connected.denied()

    allowed = {each for each in EXPECTED if ("subscription", each.lower()) not in denied}
    assert {subject for subject, (_, may) in EXPECTED.items() if role in may} == allowed
    wide = {each for each in WIDE if ("subscription", each.lower()) not in denied}
    assert {subject for subject, each in WIDE_ALLOWED if each == role} == wide


def test_the_table_knows_every_subject_that_there_is() -> None:
    """A topic, a verb or a bucket that is added has to be decided on here."""
    words = {f"{{{name}}}": "some-id" for name in ("request_id", "worker_id")}
    words |= {
        "{model}": "a-model",
        "{role}": "kv",
        "{key}": "some-key",
        "{reason}": "gave_up",
        "{host_id}": "some-host",
    }
    for topic in (*subjects.TOPICS, subjects.KV_DATA):
        for verb in subjects.MANAGER_VERBS:
            subject = topic.pattern.replace("{verb}", verb)
            for placeholder, token in words.items():
                subject = subject.replace(placeholder, token)
            assert subject in TOPICS, subject
    named = {value for name, value in vars(subjects).items() if name.endswith("_BUCKET")}
    assert named == set(BUCKETS)
    named = {value for name, value in vars(subjects).items() if name.endswith("_STREAM")}
    assert named == set(STREAMS) - {f"KV_{bucket}" for bucket in BUCKETS}


async def test_a_service_answers_whoever_asked_it_once(server: NatsServer, keys: KeySet) -> None:
    """A prefill worker may write to no inbox, but to that of a question."""
    worker = await _connect(server.url, keys.access("prefill"))
    asking = await _connect(server.url, keys.access("scheduler"))

    async def answer_twice(message: nats.aio.msg.Msg) -> None:
        await message.respond(b"one")
        await message.respond(b"two")

    await worker.client.subscribe("slipstream.v1.prefill.w", cb=answer_twice)
    await worker.denied()
    answer = await asking.client.request("slipstream.v1.prefill.w", b"", timeout=5)
    denied = await worker.denied()

    assert b"one" == answer.data
    assert [("publish", answer.subject.lower())] == list(denied)
    await worker.client.close()
    await asking.client.close()


async def test_who_has_no_known_key_is_refused(server: NatsServer, tmp_path: Path) -> None:
    others = KeySet(tmp_path)
    make_key_set(others)
    with pytest.raises(ConfigurationError, match="refuses our key, or asks for one"):
        await NatsBus.connect(server.url, "test", others.access("operator"))


def test_without_a_guest_nobody_comes_without_a_key(tmp_path: Path) -> None:
    keys = KeySet(tmp_path / "keys")
    make_key_set(keys, has_guest=False)
    with nats_with_keys(keys, has_jetstream=False) as server:
        asked = subprocess.run(
            [sys.executable, "-P", "-m", "slipstream.services.cli.main", "generate", "Hello"],
            env={"SLIPSTREAM_NATS_URL": server.url, "PATH": "/usr/bin"},
            capture_output=True,
            text=True,
            check=False,
            timeout=25,
        )

    assert 1 == asked.returncode
    assert "refuses our key, or asks for one: pass --nats-nkey" in asked.stderr


def test_roles_are_what_the_letters_say() -> None:
    services = ("scheduler", "kv", "prefill", "decode", "draft", "gateway")

    assert (*services, "operator", "client", "guest") == NATS_ROLES
