"""
Start the services of compose.yaml without a container engine, in namespaces of their own.

Each instance sees its own processes, host name, shared memory, /tmp and /run, of the volumes only
those that it declares, and a read-only root where it asks for one. Users, commands, environment and
health checks are those of compose.yaml; the variables of the image are read from the Dockerfile.
What differs from a container engine: the network is this machine's loopback (names of services are
replaced by addresses), and the image is this environment.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

_SANDBOX = Path(__file__).with_name("compose_sandbox.py")
_NAMESPACES = ("--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc")
# Nothing outlives the test, not even when it is killed.
_END_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}")
_HEALTH_POLL_S = 0.2
_STOP_S = 5.0

Compose = dict[str, Any]  # Any: YAML


class UnhealthyError(Exception):
    """A service did not become healthy."""


@dataclass(eq=False)
class Instance:
    """One running container of a service."""

    name: str
    service: Compose
    environment: dict[str, str]
    process: subprocess.Popen[bytes]
    log_file: Path

    @property
    def log(self) -> str:
        """What it printed."""
        return self.log_file.read_text(errors="replace")


@dataclass(kw_only=True)
class ComposeRunner:
    """Runs services; a context manager that stops them all."""

    compose: Compose
    image_environment: Mapping[str, str]
    hosts: Mapping[str, str]  # "nats:4222" -> "127.0.0.1:40001"
    kept_paths: list[Path]  # what the image carries: interpreter, code, model
    work_dir: Path
    image_folders: frozenset[str] = frozenset()  # those that the image has made its user's
    instances: list[Instance] = field(default_factory=list)
    _holder: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._holder = self._hold_volumes()
        return self

    def __exit__(self, *_: object) -> None:
        for instance in self.instances:
            for pid in _children(instance.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 15)
        deadline_s = time.monotonic() + _STOP_S
        for instance in self.instances:
            with contextlib.suppress(subprocess.TimeoutExpired):
                instance.process.wait(max(0.0, deadline_s - time.monotonic()))
            instance.process.kill()
            instance.process.wait()
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()

    def up(self, names: list[str], scale: Mapping[str, int], timeout_s: float) -> None:
        """Start services in the order of `depends_on`, as `docker compose up --wait` does."""
        deadline_s = time.monotonic() + timeout_s
        for name in _in_order(self.compose, names):
            needed = self.compose["services"][name].get("depends_on", {})
            self.wait_healthy([each for each in needed if each in names], deadline_s)
            for number in range(scale.get(name, 1)):
                self.start(name, f"{name}-{number + 1}")
        self.wait_healthy(names, deadline_s)

    def complete(self, name: str, timeout_s: float) -> Instance:
        """Run a service that ends by itself. Raises UnhealthyError unless it succeeds."""
        instance = self.start(name, f"{name}-1")
        status = instance.process.wait(timeout_s)
        if status:
            raise UnhealthyError(f"{instance.name} ended with {status}:\n{instance.log}")
        return instance

    def wait_healthy(self, names: list[str], deadline_s: float) -> None:
        """Return when every instance of the services is healthy. Raises UnhealthyError."""
        for instance in self.instances:
            if instance.name.rpartition("-")[0] in names:
                self._wait_healthy(instance, deadline_s)

    def start(self, service_name: str, name: str) -> Instance:
        """Start one instance."""
        service = self.compose["services"][service_name]
        environment = self._environment_of(service)
        user = _user_command(service)
        container = {
            "hostname": name,
            "kept_paths": [str(path) for path in self.kept_paths],
            "work_dir": str(self.work_dir),
            "volumes": [
                {"source": str(self._source_of(volume)), "target": target}
                for volume, target in _volumes_of(service)
            ],
            "is_read_only": service.get("read_only", False),
            "environment": environment,
            "command": [*user, *service["command"]],
        }
        log_file = self.work_dir / f"{name}.log"
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                [
                    *_END_WITH_US,
                    *self._enter_volumes(),
                    "unshare",
                    *_NAMESPACES,
                    *(sys.executable, "-P", str(_SANDBOX), json.dumps(container)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        instance = Instance(name, service, environment, process, log_file)
        self.instances.append(instance)
        return instance

    def is_healthy(self, instance: Instance) -> bool:
        """Run the declared health check inside the instance's namespaces."""
        kind, *command = instance.service["healthcheck"]["test"]
        assert "CMD" == kind, "only the exec form is understood"
        return 0 == self.execute(instance, command).returncode

    def execute(self, instance: Instance, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command inside an instance, as its user and in its environment."""
        pids = _children(instance.process.pid)
        if not pids:
            return subprocess.CompletedProcess(command, 1, "", "it has ended")
        inside = ["nsenter", "--target", str(pids[0]), *_user_namespace(), "--mount", "--pid"]
        return subprocess.run(
            [*inside, "--ipc", "--uts", "--", *_user_command(instance.service), *command],
            env=instance.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    def _wait_healthy(self, instance: Instance, deadline_s: float) -> None:
        while not self.is_healthy(instance):
            status = instance.process.poll()
            if status is not None:
                raise UnhealthyError(f"{instance.name} ended with {status}:\n{instance.log}")
            if time.monotonic() > deadline_s:
                raise UnhealthyError(f"{instance.name} is not healthy in time:\n{instance.log}")
            time.sleep(_HEALTH_POLL_S)

    def _environment_of(self, service: Compose) -> dict[str, str]:
        values = {**self.image_environment}
        for name, value in (service.get("environment") or {}).items():
            values[name] = str(value)
        for host, address in self.hosts.items():
            values = {k: v.replace(f"://{host}", f"://{address}") for k, v in values.items()}
        # The two that say where the image's files are, which here are this environment's.
        values["PATH"] = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        return values

    def _hold_volumes(self) -> "subprocess.Popen[bytes]":
        """Start a process whose mount namespace holds the declared volumes, and nobody else's."""
        script = ["set -e"]
        for name, volume in (self.compose.get("volumes") or {}).items():
            source = self.work_dir / "volumes" / name
            source.mkdir(parents=True)
            self._take_over(name, source)
            options = (volume or {}).get("driver_opts", {})
            if "tmpfs" == options.get("type"):
                script.append(f"mount -t tmpfs -o {_mountable(options['o'])} tmpfs {source}")
        script += ["echo held", "exec sleep infinity"]
        user = () if _is_root() else ("--user", "--map-root-user")
        holder = subprocess.Popen(
            [*_END_WITH_US, "unshare", *user, "--mount", "sh", "-c", "\n".join(script)],
            stdout=subprocess.PIPE,
        )
        assert holder.stdout is not None
        with holder.stdout:
            assert b"held\n" == holder.stdout.readline(), "the volumes could not be mounted"
        return holder

    def _take_over(self, volume: str, source: Path) -> None:
        """Make a new volume belong to whom the image's folder does that it is mounted on."""
        for service in self.compose["services"].values():
            for name, target in _volumes_of(service):
                if name == volume and target in self.image_folders and _is_root():
                    source.chmod(0o700)
                    os.chown(source, *map(int, str(service["user"]).split(":")))

    def source_of(self, volume: str) -> Path:
        """Return where a volume lies that is no file system of its own."""
        return self._source_of(volume)

    def _enter_volumes(self) -> list[str]:
        assert self._holder is not None, "use the runner as a context manager"
        return ["nsenter", "--target", str(self._holder.pid), *_user_namespace(), "--mount", "--"]

    def _source_of(self, volume: str) -> Path:
        return self.work_dir / "volumes" / volume


def load_compose(path: Path, variables: Mapping[str, str]) -> Compose:
    """Read compose.yaml as compose does: variables replaced, anchors merged."""

    def value_of(match: re.Match[str]) -> str:
        return variables.get(match["name"], match["default"] or "")

    loaded: Compose = yaml.safe_load(_VARIABLE.sub(value_of, path.read_text(encoding="utf-8")))
    return loaded


def read_image_environment(dockerfile: Path) -> dict[str, str]:
    """Return what ENV sets in the last stage."""
    last_stage = dockerfile.read_text(encoding="utf-8").rpartition("\nFROM ")[2]
    joined = last_stage.replace("\\\n", " ")
    lines = [line.removeprefix("ENV ") for line in joined.splitlines() if line.startswith("ENV ")]
    return dict(pair.split("=", 1) for line in lines for pair in line.split())


def read_image_folders(dockerfile: Path) -> frozenset[str]:
    """Return the folders that the last stage makes its user's, with `install` in a loop."""
    last_stage = dockerfile.read_text(encoding="utf-8").rpartition("\nFROM ")[2]
    loop = re.search(
        r'for name in ([\w ]+); do install --directory --owner slipstream .*?"(\S+)/\$name"',
        re.sub(r"\s*\\\n\s*", " ", last_stage),
    )
    assert loop is not None, "the Dockerfile makes no folders"
    return frozenset(f"{loop[2]}/{name}" for name in loop[1].split())


def why_impossible() -> str | None:
    """Say why namespaces can't be made here, or return None."""
    user = () if _is_root() else ("--user", "--map-root-user")
    try:
        tried = subprocess.run(
            ["unshare", *user, *_NAMESPACES, "true"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "there is no unshare (util-linux)"
    return tried.stderr.strip() or "unshare failed" if tried.returncode else None


def _is_root() -> bool:
    return 0 == os.geteuid()


def _user_namespace() -> list[str]:
    return [] if _is_root() else ["--user", "--preserve-credentials"]


def _mountable(options: str) -> str:
    """Leave out the owner where the namespace knows only one user."""
    if _is_root():
        return options
    return ",".join(each for each in options.split(",") if not each.startswith(("uid=", "gid=")))


def _user_command(service: Compose) -> list[str]:
    """Return what runs a command as the service's user, without capabilities."""
    safe = ["setpriv", "--no-new-privs", "--inh-caps=-all"]
    if not _is_root():
        return [*safe, "--"]
    user, _, group = str(service["user"]).partition(":")
    return [*safe, "--reuid", user, "--regid", group or user, "--clear-groups", "--"]


def _volumes_of(service: Compose) -> list[tuple[str, str]]:
    """Return name and mount point of each volume."""
    parts = [volume.split(":") for volume in service.get("volumes", [])]
    return [(part[0], part[1]) for part in parts]


def _in_order(compose: Compose, names: list[str]) -> list[str]:
    """Return the services, each after those that it depends on."""
    ordered: list[str] = []

    def visit(name: str) -> None:
        for needed in compose["services"][name].get("depends_on", {}):
            if needed in names:
                visit(needed)
        if name not in ordered:
            ordered.append(name)

    for name in names:
        visit(name)
    return ordered


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
