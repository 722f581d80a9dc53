"""`slipstream keys`: what is made, who may read it, and what is never overwritten by accident."""

import json
import re
import stat
from pathlib import Path

import pytest

from slipstream.services.cli.main import run_command
from slipstream.services.cli.nats_keys import KEYED_ROLES, KeySet
from slipstream.shared.bus.nats_access import read_seed
from slipstream.shared.bus.permissions import permissions_of


def _init(directory: Path, *options: str) -> int:
    return run_command(["keys", "init", "--dir", str(directory), *options])


def _seeds(directory: Path) -> dict[str, str]:
    return {role: read_seed(KeySet(directory).seed_file(role)).text for role in KEYED_ROLES}


def _guest(directory: Path) -> str:
    found = re.search(
        r"^no_auth_user: .*", KeySet(directory).permissions_file.read_text(), re.MULTILINE
    )
    assert found is not None
    return found[0]


def test_everything_is_for_its_owner_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert 0 == _init(tmp_path / "keys", "--tls")

    found = [tmp_path / "keys", *(tmp_path / "keys").rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in found}
    assert {0o700} == {modes[path] for path in found if path.is_dir()}
    assert {0o600} == {modes[path] for path in found if path.is_file()}
    assert len(KEYED_ROLES) == len(set(_seeds(tmp_path / "keys").values()))


def test_what_the_server_reads_holds_no_secret(tmp_path: Path) -> None:
    assert 0 == _init(tmp_path)

    text = KeySet(tmp_path).permissions_file.read_text()
    assert not any(seed in text for seed in _seeds(tmp_path).values())
    assert re.search(r"^no_auth_user: U[A-Z2-7]{55}$", text, re.MULTILINE)
    for role in (*KEYED_ROLES, "guest"):
        for subject in permissions_of(role).publish:
            assert f'"{subject}"' in text


def test_keys_that_are_there_are_kept_unless_new_ones_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == _init(tmp_path)
    before = _seeds(tmp_path)

    assert 1 == _init(tmp_path)
    assert "pass --keep to renew their permissions, --force" in capsys.readouterr().err
    assert before == _seeds(tmp_path)
    KeySet(tmp_path).permissions_file.write_text("old")
    assert 0 == _init(tmp_path, "--keep")
    assert before == _seeds(tmp_path)
    assert "authorization" in KeySet(tmp_path).permissions_file.read_text()
    assert 0 == _init(tmp_path, "--force")
    assert not set(before.values()) & set(_seeds(tmp_path).values())
    assert 1 == _init(tmp_path, "--force", "--keep")


def test_a_role_that_is_missing_is_made_beside_those_that_are_kept(tmp_path: Path) -> None:
    assert 0 == _init(tmp_path)
    before = _seeds(tmp_path)
    KeySet(tmp_path).seed_file("draft").unlink()
    guest = _guest(tmp_path)

    assert 0 == _init(tmp_path, "--keep")
    assert guest == _guest(tmp_path), "a running server can't have another one"
    after = _seeds(tmp_path)
    assert {"draft"} == {role for role in before if before[role] != after[role]}


def test_certificates_stay_with_kept_keys_and_go_with_old_ones(tmp_path: Path) -> None:
    assert 0 == _init(tmp_path, "--tls", "--hosts", "localhost,::1")
    certificate = (tmp_path / "nats" / "server.crt").read_bytes()

    assert 0 == _init(tmp_path, "--keep")
    assert certificate == (tmp_path / "nats" / "server.crt").read_bytes()
    assert "\ntls {" in KeySet(tmp_path).permissions_file.read_text()
    assert 0 == _init(tmp_path, "--force")
    assert KeySet(tmp_path).access("decode").ca is None
    assert "\ntls {" not in KeySet(tmp_path).permissions_file.read_text()


def test_what_is_shown_is_public_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == _init(tmp_path, "--no-guest", "--json")
    made = json.loads(capsys.readouterr().out)

    assert 0 == run_command(["keys", "show", "--dir", str(tmp_path), "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert made == shown
    assert not shown["has_guest"]
    assert set(KEYED_ROLES) == set(shown["roles"])
    KeySet(tmp_path).seed_file("kv").write_bytes(KeySet(tmp_path).seed_file("draft").read_bytes())
    assert 1 == run_command(["keys", "show", "--dir", str(tmp_path)])
    assert "is not the key of kv" in capsys.readouterr().err


@pytest.mark.parametrize("hosts", ["", "a b", "x,DNS:evil\nkeyUsage=critical", 'a"b'])
def test_hosts_are_names_and_addresses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hosts: str
) -> None:
    assert 1 == _init(tmp_path / "keys", "--tls", "--hosts", hosts)
    assert "--hosts is" in capsys.readouterr().err
    assert not (tmp_path / "keys").exists()
