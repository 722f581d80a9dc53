"""
The first process of one stand-in container: hides the machine, then runs the service's command.

It is started by `unshare` with fresh mount, PID, IPC and UTS namespaces. Usage: a JSON description
(see compose_runner.py). Standard library only, since it runs before the service's environment is
set up.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC = 1, 32, 4096, 16384
# What Docker gives a container.
_SHARED_MEMORY_OPTIONS = "mode=1777,size=64m"
_OTHERS_MAY_PASS = 0o001

_libc = ctypes.CDLL(None, use_errno=True)


def main(container: dict[str, Any]) -> int:  # Any: JSON
    """Set up the container, run its command, return the command's exit status."""
    socket.sethostname(container["hostname"])
    kept = _open_all(container["kept_paths"])
    volumes = _open_all([volume["source"] for volume in container["volumes"]])
    for directory in _closed_ancestors(container["kept_paths"]):
        _hide(directory, "mode=0755", kept)
    _hide(container["work_dir"], "mode=0755", kept)
    _hide("/dev/shm", _SHARED_MEMORY_OPTIONS, kept)
    _hide("/tmp", "mode=1777", kept)
    _hide("/run", "mode=0755", kept)
    for volume in container["volumes"]:
        Path(volume["target"]).mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{volumes[volume['source']]}", volume["target"], None, _MS_BIND)
    if container["is_read_only"]:
        _mount(None, "/", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY)
    return _run(container["command"], container["environment"])


def _open_all(paths: list[str]) -> dict[str, int]:
    """Return a descriptor for each path: it names the folder also once something hides it."""
    return {path: os.open(path, os.O_PATH) for path in paths}


def _closed_ancestors(paths: list[str]) -> list[str]:
    """Return the folders on the way to the paths that another user can't pass (such as /root)."""
    found = []
    for path in paths:
        for ancestor in reversed(Path(path).parents):
            if not ancestor.stat().st_mode & _OTHERS_MAY_PASS and str(ancestor) not in found:
                found.append(str(ancestor))
    return found


def _hide(directory: str, options: str, kept: dict[str, int]) -> None:
    """Mount an empty folder over one, and in it only what the image would carry."""
    _mount("tmpfs", directory, "tmpfs", 0, options)
    for path, descriptor in kept.items():
        if Path(path).is_relative_to(directory):
            Path(path).mkdir(parents=True, exist_ok=True)
            _mount(f"/proc/self/fd/{descriptor}", path, None, _MS_BIND | _MS_REC)


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    def raw(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    if _libc.mount(raw(source), raw(target), raw(kind), ctypes.c_ulong(flags), raw(options)):
        number = ctypes.get_errno()
        raise OSError(number, f"mount of {target}: {os.strerror(number)}")


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run the command as an init process does: pass SIGTERM on, reap whatever ends."""
    child = subprocess.Popen(command, env=environment, cwd="/tmp")
    signal.signal(signal.SIGTERM, lambda number, _frame: child.send_signal(number))
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
