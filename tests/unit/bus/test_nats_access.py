"""Which files a connection takes, and which it refuses."""

import ssl
from pathlib import Path

import nats.errors
import pytest

from slipstream.shared.bus.nats_access import NatsAccess, Seed, read_seed, seed_text
from slipstream.shared.bus.nats_refusals import Refusals, why_refused
from slipstream.shared.bus.nats_trouble import Denial
from slipstream.shared.bus.permissions import NATS_ROLES, inbox_prefix
from slipstream.shared.bus.subjects import is_inbox
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.errors import ConfigurationError

_TEXT = "SU" + "A" * 56


@pytest.fixture
def seed_file(tmp_path: Path) -> Path:
    path = tmp_path / "nats.nk"
    path.write_text(seed_text(Seed("decode", _TEXT)), encoding="ascii")
    path.chmod(0o600)
    return path


def test_a_key_says_whose_it_is_and_where_its_answers_come(seed_file: Path) -> None:
    options = NatsAccess(nkey=seed_file).connect_options("nats://127.0.0.1")

    assert Seed("decode", _TEXT) == read_seed(seed_file)
    assert {"inbox_prefix": "_INBOX_decode", "nkeys_seed_str": _TEXT} == options
    assert {"inbox_prefix": "_INBOX"} == NatsAccess().connect_options("nats://127.0.0.1")


def test_inboxes_of_all_roles_are_told_apart_and_may_be_answered() -> None:
    prefixes = {inbox_prefix(role) for role in NATS_ROLES}

    assert len(NATS_ROLES) == len(prefixes)
    assert all(is_inbox(f"{prefix}.a.b") for prefix in prefixes)


def test_a_seed_is_never_shown() -> None:
    assert _TEXT not in f"{Seed('kv', _TEXT)!r} {Seed('kv', _TEXT)}"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_reach_is_refused(seed_file: Path, mode: int) -> None:
    seed_file.chmod(mode)

    with pytest.raises(ConfigurationError, match=rf"mode {mode:04o}\): chmod 600 "):
        read_seed(seed_file)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no seed of a NATS user key"),
        ("# role: decode\nSUshort\n", "no seed of a NATS user key"),
        (f"# role: decode\n{_TEXT}\n{_TEXT}\n", "no seed of a NATS user key"),
        (f"{_TEXT}\n", "needs a line `# role: ROLE`"),
        (f"# role: root\n{_TEXT}\n", "needs a line `# role: ROLE`"),
    ],
)
def test_another_file_is_refused(seed_file: Path, text: str, complaint: str) -> None:
    seed_file.write_text(text)

    with pytest.raises(ConfigurationError, match=complaint) as refusal:
        read_seed(seed_file)
    assert _TEXT not in str(refusal.value)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nothing\.nk can't be read: No such file"):
        read_seed(tmp_path / "nothing.nk")


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--nats-cert and --nats-key belong together"):
        SchedulerConfig(cache_dir=tmp_path, nats_cert=tmp_path / "crt")


def test_what_is_no_certificate_is_named(seed_file: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no TLS can be made of \S+nats\.nk"):
        NatsAccess(ca=seed_file).connect_options("nats://127.0.0.1")


def test_tls_is_verified_wherever_it_is_asked_for() -> None:
    context = NatsAccess().connect_options("tls://127.0.0.1")["tls"]

    assert ssl.CERT_REQUIRED == context.verify_mode
    assert context.check_hostname


def test_what_is_denied_fills_no_memory() -> None:
    refusals = Refusals()
    for number in range(2000):
        refusals.note(Denial("publish", f"a.{number}"))

    assert "publish" == refusals.subjects["a.0"]
    assert len(refusals.subjects) <= 256


def test_what_time_may_mend_is_no_refusal() -> None:
    assert why_refused(ConnectionRefusedError()) is None
    assert why_refused(nats.errors.NoServersError()) is None
    assert "--nats-nkey" in str(why_refused(nats.errors.Error("nats: 'Authorization Violation'")))
