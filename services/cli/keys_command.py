"""`slipstream keys`: who may do what on NATS."""

import json as json_module
import re
from pathlib import Path
from typing import Annotated

import typer

from slipstream.shared.errors import ConfigurationError

app = typer.Typer(
    no_args_is_help=True,
    help="""
    Keys of the services and their clients, for NATS.

    For example:

      slipstream keys init

      slipstream keys show
    """,
)

DEFAULT_DIRECTORY = Path("deploy/keys")
DEFAULT_HOSTS = "localhost,127.0.0.1,nats"

Directory = Annotated[Path, typer.Option("--dir", help="Where they lie, a folder for each role.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@app.command()
def init(
    directory: Directory = DEFAULT_DIRECTORY,
    *,
    force: Annotated[bool, typer.Option("--force", help="Put new keys in place of old.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the keys that are there, renew the permissions.")
    ] = False,
    guest: Annotated[bool, typer.Option(help="Let who has no key ask for answers.")] = True,
    tls: Annotated[bool, typer.Option("--tls", help="A certificate for the server too.")] = False,
    hosts: Annotated[
        str, typer.Option(help="Its names and addresses, with --tls.")
    ] = DEFAULT_HOSTS,
    server_dir: Annotated[
        str | None, typer.Option(help="Where the server will find its folder `nats` (with --tls).")
    ] = None,
    json: AsJson = False,
) -> None:
    """
    Make a key for each role, and the permissions for `deploy/nats.conf`.

    For example:

      slipstream keys init

      slipstream keys init --dir /etc/slipstream/keys --no-guest --tls --hosts nats.example.org
    """
    from slipstream.services.cli.nats_keys import SERVER, KeySet, make_key_set  # noqa: PLC0415 - keeps --help quick

    if force and keep:
        raise ConfigurationError("--force and --keep contradict each other: pass one of them")
    names = _checked_hosts(hosts)
    keys = KeySet(directory)
    if keys.permissions_file.exists() and not force and not keep:
        raise ConfigurationError(
            f"{directory} has keys, which services may be using: pass --keep to renew their "
            "permissions, --force to put new ones in their place, or another --dir"
        )
    has_tls = tls or (keep and keys.has_certificate)
    tls_directory = server_dir or str((directory / SERVER).absolute())
    make_key_set(
        keys, has_guest=guest, is_kept=keep, tls_directory=tls_directory if has_tls else None
    )
    if tls and not (keep and keys.has_certificate):
        from slipstream.services.cli.nats_certificates import make_certificates  # noqa: PLC0415 - keeps --help quick

        make_certificates(keys, names)
    _print(keys_of(directory), is_json=json, has_head=True)


@app.command()
def show(directory: Directory = DEFAULT_DIRECTORY, *, json: AsJson = False) -> None:
    """
    Check a set of keys, and list whose they are. Seeds are not shown.

    For example:

      slipstream keys show --json | jq -r .roles.decode
    """
    _print(keys_of(directory), is_json=json)


def keys_of(directory: Path) -> dict[str, object]:
    """Return what there is. Raises ConfigurationError for what is missing or wrong."""
    from slipstream.services.cli.nats_keys import KEYED_ROLES, KeySet, public_key_of  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.bus.nats_access import read_seed  # noqa: PLC0415 - keeps --help quick

    keys = KeySet(directory)
    try:
        permissions = keys.permissions_file.read_text(encoding="ascii")
    except OSError as error:
        raise ConfigurationError(
            f"{keys.permissions_file} can't be read ({error.strerror}): "
            f"`slipstream keys init --dir {directory}` makes it"
        ) from error
    roles = {}
    for role in KEYED_ROLES:
        seed = read_seed(keys.seed_file(role))
        roles[role] = public_key_of(seed)
        if seed.role != role or roles[role] not in permissions:
            raise ConfigurationError(
                f"{keys.seed_file(role)} is not the key of {role} that {keys.permissions_file} "
                "names: `slipstream keys init --keep` renews it"
            )
    return {
        "permissions": str(keys.permissions_file),
        "has_guest": "no_auth_user" in permissions,
        "has_tls": re.search(r"^tls \{", permissions, re.MULTILINE) is not None,
        "roles": roles,
    }


def _print(found: dict[str, object], *, is_json: bool, has_head: bool = False) -> None:
    if is_json:
        typer.echo(json_module.dumps(found))
        return
    roles = found["roles"]
    assert isinstance(roles, dict), "made above"
    for role, public in roles.items():
        typer.echo(f"{role:<12}{public}")
    guest = "may ask" if found["has_guest"] else "is refused"
    typer.echo(f"who has no key {guest}; TLS is {'on' if found['has_tls'] else 'off'}")
    if has_head:
        typer.echo(f"for the server: include {found['permissions']}")


def _checked_hosts(hosts: str) -> list[str]:
    names = [each.strip() for each in hosts.split(",") if each.strip()]
    wrong = [each for each in names if re.fullmatch(r"[A-Za-z0-9.:*-]{1,253}", each) is None]
    if wrong or not names:
        raise ConfigurationError(
            f"--hosts is {hosts!r}; it must be names and addresses with commas between them"
        )
    return names
