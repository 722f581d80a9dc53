"""Find, choose and call the native kernels. Each ISA level is a library of its own."""

import ctypes
import importlib.util
import os
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from slipstream.kernels.cpu import structs

# Best first. What a level needs of /proc/cpuinfo, beyond those after it.
LEVELS = ("amx", "avx512", "avx2", "portable")
_FLAGS = {
    "amx": {"amx_tile", "amx_int8", "avx512_vnni", "avx512f", "avx512bw", "avx512_bf16"},
    "avx512": {"avx512_vnni", "avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "avx2": {"avx2", "fma", "f16c", "bmi2"},
    "portable": set[str](),
}


class NativeUnavailableError(RuntimeError):
    """The native kernels can't be used here; the message says why."""


class NativeLibrary:
    """A loaded level. Calls release the GIL."""

    def __init__(self, level: str, path: Path) -> None:
        self.level = level
        self._functions = ctypes.CDLL(str(path))
        self._functions.slipstream_engine_new.restype = ctypes.c_void_p
        self._functions.slipstream_engine_free.argtypes = [ctypes.c_void_p]
        self._functions.slipstream_engine_rest.argtypes = [ctypes.c_void_p]
        self._functions.slipstream_engine_share_cores.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._functions.slipstream_step.argtypes = [
            ctypes.c_void_p,
            ctypes.POINTER(structs.Model),
            ctypes.POINTER(structs.Step),
        ]
        self._check_sizes()
        if self._functions.slipstream_prepare() != 0:
            raise NativeUnavailableError(f"the operating system does not allow {level}")

    def new_engine(self, num_threads: int) -> int:
        """Return a handle of a compute pool with its workspace. Raises MemoryError."""
        handle: int | None = self._functions.slipstream_engine_new(num_threads)
        if handle is None:
            raise MemoryError(f"no engine with {num_threads} threads can be made")
        return handle

    def free_engine(self, handle: int) -> None:
        """End the pool and give its memory back."""
        self._functions.slipstream_engine_free(handle)

    def rest(self, handle: int) -> None:
        """Free the buffers of past steps; the next one makes those that it needs."""
        self._functions.slipstream_engine_rest(handle)

    def share_cores(self, handle: int, ledger: Path) -> bool:
        """Share cores with all who name the same file; False where that can't be done."""
        status: int = self._functions.slipstream_engine_share_cores(handle, str(ledger).encode())
        return status == 0

    def step(self, handle: int, model: structs.Model, step: structs.Step) -> None:
        """Run one step. Raises MemoryError."""
        if self._functions.slipstream_step(handle, model, step) != 0:
            raise MemoryError(f"no memory for a step of {step.num_rows} rows")

    def function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """
        Return a function by its name and types. Any: what ctypes types have in common is private.

        Raises NativeUnavailableError.
        """
        try:
            found = self._functions[name]
        except AttributeError as error:
            raise NativeUnavailableError(
                f"{name} is not in the kernels for {self.level}: they are older; run make setup"
            ) from error
        found.restype, found.argtypes = result, arguments
        return found

    def _check_sizes(self) -> None:
        sizes = (ctypes.c_int64 * len(structs.ALL))()
        self._functions.slipstream_sizes(sizes)
        ours = [ctypes.sizeof(struct) for struct in structs.ALL]
        assert ours == list(sizes), f"structs differ from the library's: {ours}, {list(sizes)}"


def available_levels() -> list[str]:
    """Return the levels that were built and that this machine can run, best first."""
    flags = _cpu_flags()
    return [level for level in LEVELS if _path(level) is not None and _FLAGS[level] <= flags]


@cache
def load(level: str | None = None) -> NativeLibrary:
    """
    Return a level's library, by default the best that works.

    Raises NativeUnavailableError.
    """
    levels = available_levels()
    if level is not None and level not in levels:
        known = ", ".join(levels) or "none"
        raise NativeUnavailableError(f"no native kernels for level {level!r}; here: {known}")
    problem = "they were not built (is there a C++ compiler?)"
    for candidate in [level] if level is not None else levels:
        path = _path(candidate)
        assert path is not None, "an available level has a file"
        try:
            return NativeLibrary(candidate, path)
        except (OSError, NativeUnavailableError) as error:
            problem = str(error)
    raise NativeUnavailableError(f"no native kernels: {problem}")


def _path(level: str) -> Path | None:
    # Another build of the same kernels takes the place of the installed one: see `make sanitize`.
    if folder := os.environ.get("SLIPSTREAM_KERNELS_DIR"):
        return next(Path(folder).glob(f"_{level}.*"), None)
    found = importlib.util.find_spec(f"slipstream.kernels.cpu._{level}")
    return Path(found.origin) if found is not None and found.origin is not None else None


@cache
def _cpu_flags() -> frozenset[str]:
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return frozenset()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(
        flag for line in lines if line.startswith("flags") for flag in line.split(":", 1)[1].split()
    )
