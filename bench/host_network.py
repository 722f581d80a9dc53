"""Two hosts on one machine: namespaces with a link between them that can be shaped or cut."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LINK = "kv0"
_OUTSIDE = "out0"
# Larger than what network cards join to one packet, or the shaper would drop it.
_BURST = "256kb"
_LATENCY = "100ms"


@dataclass(frozen=True)
class Host:
    """One side of the link."""

    name: str
    address: str  # on the link
    enter: Sequence[str] = ()  # what a command begins with, to run there


@dataclass(frozen=True)
class HostNetwork:
    """
    Two hosts and their link.

    From outside the near one is reached at `outside_address`; the far one is not.
    """

    near: Host
    far: Host
    outside_address: str
    link: str  # what it is, in words

    def shape(self, rate: str) -> None:
        """Let no more than a rate (such as `1gbit`) through, either way."""
        for host in (self.near, self.far):
            _run(
                *("tc", "-n", host.name, "qdisc", "replace", "dev", _LINK, "root", "tbf"),
                *("rate", rate, "burst", _BURST, "latency", _LATENCY),
            )

    def unshape(self) -> None:
        """Let everything through at the link's own rate."""
        for host in (self.near, self.far):
            _run("tc", "-n", host.name, "qdisc", "del", "dev", _LINK, "root", is_checked=False)

    def cut(self) -> None:
        """Let nothing through."""
        _run("ip", "-n", self.far.name, "link", "set", _LINK, "down")

    def mend(self) -> None:
        """Let everything through again."""
        _run("ip", "-n", self.far.name, "link", "set", _LINK, "up")


def why_not() -> str | None:
    """Return why network namespaces can't be had here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"network namespaces need {' and '.join(missing)}"
    is_allowed = _run("unshare", "-n", "true", is_checked=False)
    return None if is_allowed else "this machine allows no network namespaces"


@contextlib.contextmanager
def host_network() -> Iterator[HostNetwork]:
    """Make two hosts and a link while a block runs. Ask `why_not` first."""
    number = os.getpid() % 250
    near, far = (
        Host(f"kv{os.getpid()}{side}", f"10.213.{number}.{last}", _enter(f"kv{os.getpid()}{side}"))
        for side, last in (("near", 1), ("far", 2))
    )
    outside = f"kv{os.getpid() % 100_000}o"
    outside_address = f"10.213.{number}.6"
    try:
        for host in (near, far):
            _run("ip", "netns", "add", host.name)
        _join(_LINK, near.name, _LINK, far.name)
        _join(outside, None, _OUTSIDE, near.name)
        for host in (near, far):
            _give_address(host.name, _LINK, host.address)
            _run("ip", "-n", host.name, "link", "set", "lo", "up")
        _give_address(near.name, _OUTSIDE, outside_address)
        _run("ip", "address", "add", f"10.213.{number}.5/30", "dev", outside)
        _run("ip", "link", "set", outside, "up")
        yield HostNetwork(near, far, outside_address, "a veth pair between two namespaces")
    finally:
        for host in (near, far):
            _run("ip", "netns", "del", host.name, is_checked=False)


def _enter(name: str) -> tuple[str, ...]:
    return ("ip", "netns", "exec", name)


def _join(first: str, first_space: str | None, second: str, second_space: str) -> None:
    where = ("netns", first_space) if first_space is not None else ()
    _run(
        *("ip", "link", "add", "name", first, *where),
        *("type", "veth", "peer", "name", second, "netns", second_space),
    )


def _give_address(space: str, device: str, address: str) -> None:
    _run("ip", "-n", space, "address", "add", f"{address}/30", "dev", device)
    _run("ip", "-n", space, "link", "set", device, "up")


def _run(program: str, *arguments: str, is_checked: bool = True) -> bool:
    """Run a program of the PATH; tell whether it went well."""
    found = shutil.which(program)
    if found is None:
        return False
    stderr = None if is_checked else subprocess.DEVNULL
    done = subprocess.run([found, *arguments], check=is_checked, stderr=stderr)
    return done.returncode == 0
