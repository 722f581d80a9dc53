"""The flame graph of `slipstream profile`: py-spy looks into a process while it works."""

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from slipstream.shared.client.counters import ProcessCounters, ProcessSpan
from slipstream.shared.errors import ConfigurationError, SlipstreamError

_PROGRAM = "py-spy"
_RATE = 100  # looks a second
_MARGIN_S = 30.0  # for drawing
_SVG = ".svg"


class FlameError(SlipstreamError):
    """There is no flame graph; the message says why, and what would help."""

    code = "no_flame_graph"


def find_program(path: Path) -> Path:
    """Return py-spy, for a graph in such a file. Raises ConfigurationError."""
    if path.suffix != _SVG:
        raise ConfigurationError(f"--flame {path}: a flame graph is an SVG; name a file.svg")
    if not path.parent.is_dir():
        raise ConfigurationError(f"--flame {path}: there is no directory {path.parent}; make it")
    beside = Path(sys.executable).parent / _PROGRAM
    found = beside if beside.is_file() else shutil.which(_PROGRAM)
    if found is None:
        raise ConfigurationError("--flame needs py-spy: pip install 'slipstream[profile]'")
    return Path(found)


def process_to_draw(processes: Iterable[ProcessCounters | ProcessSpan]) -> int:
    """Return the process id of the first decode worker. Raises FlameError."""
    pids = [each.pid for each in sorted(processes, key=_name_of) if each.role == "decode"]
    if not pids:
        raise FlameError("--flame: no decode worker runs there")
    if not Path(f"/proc/{pids[0]}").exists() and Path("/proc/self").exists():
        raise FlameError(
            f"--flame: the decode worker is process {pids[0]} of another host or container; run "
            "slipstream profile beside it"
        )
    return pids[0]


def _name_of(process: ProcessCounters | ProcessSpan) -> str:
    return process.worker_id


async def draw(program: Path, pid: int, seconds: float, path: Path) -> None:
    """Look into a process for a while, and draw what it did. Raises FlameError."""
    options = ("--nonblocking", "--format", "flamegraph", "--rate", str(_RATE))
    process = await asyncio.create_subprocess_exec(
        *(program, "record", *options),
        *("--duration", str(max(1, round(seconds))), "--output", path, "--pid", str(pid)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "NO_COLOR": "1"},
    )
    try:
        async with asyncio.timeout(seconds + _MARGIN_S):
            said, _ = await process.communicate()
    except TimeoutError as error:
        raise FlameError(
            f"--flame: py-spy was not done after {seconds + _MARGIN_S:.0f} s"
        ) from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    if process.returncode != 0:
        lines = said.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise FlameError(
            f"--flame: py-spy could not look into process {pid} ({lines[-1].strip()}); run it as "
            "root, or allow it: sysctl kernel.yama.ptrace_scope=0, or --cap-add SYS_PTRACE for a "
            "container"
        )
