"""Two hosts, a gateway, two schedulers and a NATS server, all of which can be hit."""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

from tests.chaos import skewed_clock
from tests.chaos.cut_proxy import CutProxy, cuttable
from tests.chaos.kept import Kept, free_port, listens, says_ready
from tests.chaos.storm_plan import Blow
from tests.end_to_end import stack

_START_S = 90.0
_SERVICE = (sys.executable, "-P", skewed_clock.__file__)
NUM_BLOCKS = 384
_STORE_MIB = 32
_CLOCK_JUMP_S = 3600
_SQUEEZED_BYTES = 4 * 1024 * 1024
_NATS_CONF = """\
host: "127.0.0.1"
port: {port}
max_payload: 8MB
jetstream {{ store_dir: "{store}", max_memory_store: 64MB, max_file_store: 256MB }}
"""
_HOSTS = {
    "a": ("kv-a", "prefill-a", "decode-a", "draft-a"),
    "b": ("kv-b", "prefill-b", "decode-b", "draft-b"),
}


class World:
    """Owns the processes, the network of the second host, the clock and the disk."""

    def __init__(self, directory: Path, seed: int, *, is_small: bool) -> None:
        """A small one is a host with one process of each role."""
        self._hosts = {"a": ("kv-a", "prefill-a", "decode-a")} if is_small else _HOSTS
        # One leads, the other stands by; in a small world one is started again.
        self._schedulers = ("scheduler-1",) if is_small else ("scheduler-1", "scheduler-2")
        self.directory = directory
        self.mark = secrets.token_hex(8)
        self.nats_port, self.http_port = free_port(), free_port()
        self.kept: dict[str, Kept] = {}
        self.num_skipped = 0
        self.is_disk_small = False
        self._store = directory / "store"
        self._clock = directory / "clock"
        self._random = Random(seed)
        self._proxy: CutProxy | None = None

    @property
    def nats_url(self) -> str:
        """Where clients connect."""
        return f"nats://127.0.0.1:{self.nats_port}"

    @property
    def http_url(self) -> str:
        """Where the gateway serves."""
        return f"http://127.0.0.1:{self.http_port}"

    async def start(self, proxy: CutProxy, step_ms: float) -> None:
        """Start everything and return when all can take work."""
        self._proxy = proxy
        skewed_clock.set_offset(self._clock, 0)
        self._store.mkdir()
        self.is_disk_small = _mount(self._store)
        await self._start_nats()
        for name in self._schedulers:
            self._add(name, "scheduler", self.nats_port, step_ms)
        for host, names in self._hosts.items():
            port = self.nats_port if host == "a" else proxy.port
            for name in names:
                self._add(name, name.partition("-")[0], port, step_ms, host)
        self._add("gateway", "gateway", self.nats_port, step_ms)
        for each in self.kept.values():
            await each.until_ready(_START_S)

    async def strike(self, blow: Blow) -> str | None:
        """Let one fault happen, and pass; return whom it hit, or None where nobody was ready."""
        names = [
            name for name, each in self.kept.items() if each.role == blow.role and each.is_ready
        ]
        if not names:
            self.num_skipped += 1
            return None
        victim = self.kept[self._random.choice(sorted(names))]
        match blow.fault:
            case "kill":
                victim.signal(signal.SIGKILL)
            case "freeze":
                victim.signal(signal.SIGSTOP)
                await asyncio.sleep(blow.lasts_s)
                victim.signal(signal.SIGCONT)
            case "squeeze":
                victim.squeeze(_SQUEEZED_BYTES)
                await asyncio.sleep(blow.lasts_s)
                victim.squeeze(None)
            case "cut":
                assert self._proxy is not None, "made before the start"
                self._proxy.cut()
                await asyncio.sleep(blow.lasts_s)
                self._proxy.mend()
            case "clock":
                skewed_clock.set_offset(self._clock, self._random.choice((-1, 1)) * _CLOCK_JUMP_S)
            case "disk":
                await self._fill_disk(blow.lasts_s)
        return victim.name

    async def until_ready(self) -> None:
        """Return when everything is back."""
        for each in self.kept.values():
            await each.until_ready(_START_S)

    async def stop(self) -> None:
        """Stop all in order; each must end by itself and well."""
        order = ("gateway", "draft", "decode", "prefill", "scheduler", "kv", "nats")
        for each in sorted(self.kept.values(), key=lambda each: order.index(each.role)):
            status = await each.stop()
            assert status == 0 or each.role == "nats", f"{each.name}: {status}, {each.tail}"

    async def close(self) -> None:
        """End all however they are."""
        for each in self.kept.values():
            await each.close()
        if self.is_disk_small:
            await asyncio.to_thread(subprocess.run, ["umount", self._store], check=False)

    @property
    def num_hosts(self) -> int:
        """How many KV managers there are."""
        return len(self._hosts)

    @property
    def left_over(self) -> list[str]:
        """What should not be there after the stop: processes, arenas, notes, sockets."""
        files = [
            str(path.relative_to(self.directory))
            for host in self._hosts
            for pattern in ("arena.*", "step.*", "*.sock")
            for path in (self.directory / host).glob(pattern)
        ]
        return [*files, *stack.marked_processes(self.mark).values()]

    @property
    def log(self) -> str:
        """What all have logged."""
        return "".join(each.log_file.read_text(errors="replace") for each in self.kept.values())

    async def _start_nats(self) -> None:
        conf = self.directory / "nats.conf"
        conf.write_text(_NATS_CONF.format(port=self.nats_port, store=self._store))
        binary = Path(sys.executable).parent / "nats-server"
        kept = Kept(
            "nats",
            "nats",
            [binary, "-c", conf],
            stack.marked_environment(self.mark, {}),
            self.directory / "nats.log",
            listens(self.nats_port),
        )
        self.kept["nats"] = kept
        kept.start()
        await kept.until_ready(_START_S)

    def _add(self, name: str, role: str, port: int, step_ms: float, host: str = "a") -> None:
        status_file = self.directory / f"{name}.json"
        variables = {
            "NATS_URL": f"nats://127.0.0.1:{port}",
            "ARENA_DIR": self.directory / host,
            "CACHE_DIR": self.directory / "cache",
            "MODEL": "fake",
            "ENGINE": "fake",
            "TEST_MODE": 1,
            "LOG_JSON": 1,
            "DRAIN_S": 2,
            "PARENT_PID": os.getpid(),
            "STATUS_FILE": status_file,
            "KV_BLOCKS": NUM_BLOCKS,
            "FAKE_STEP_MS": step_ms,
            "DRAFT_PLACE": "draft" if len(self._hosts) > 1 else "decode",
            "HTTP_PORT": self.http_port,
            "SPILL_DIR": self._store / f"spill-{host}",
            "SPILL_BYTES": "1MiB",
        }
        environment = {f"SLIPSTREAM_{key}": str(value) for key, value in variables.items()}
        environment[skewed_clock.VARIABLE] = str(self._clock)
        kept = Kept(
            name,
            role,
            [*_SERVICE, role],
            stack.marked_environment(self.mark, environment),
            self.directory / f"{name}.log",
            says_ready(status_file),
        )
        self.kept[name] = kept
        kept.start()

    async def _fill_disk(self, seconds: float) -> None:
        if not self.is_disk_small:
            self.num_skipped += 1
            return
        ballast = self._store / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024 * 1024))
        await asyncio.sleep(seconds)
        ballast.unlink()


def _mount(directory: Path) -> bool:
    """Put a small file system of its own there; False where only root may."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={_STORE_MIB}m", "tmpfs", str(directory)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@contextlib.asynccontextmanager
async def raging(
    directory: Path, seed: int, step_ms: float, *, is_small: bool
) -> AsyncIterator[World]:
    """A world while a block runs; it must then stop well."""
    world = World(directory, seed, is_small=is_small)
    async with cuttable("127.0.0.1", world.nats_port) as proxy:
        try:
            await world.start(proxy, step_ms)
            yield world
            await world.stop()
        finally:
            await world.close()
