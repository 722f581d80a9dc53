"""What `slipstream doctor` looks at on this machine: processor, memory, clock, limits, model."""

import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from slipstream.services.cli.doctor_findings import Finding, judged, ok
from slipstream.shared.config import WeightFormat
from slipstream.shared.errors import ModelError

GIB = 2**30
_MIB = 2**20
# The default model's weights in four and eight bits, its vocabulary, and 45 % of so much for KV.
_MIN_MEMORY = 1 * GIB
_MIN_SHARED_MEMORY = 256 * _MIB  # below, a container's own 64 MB among others, KV hardly fits
_MIN_DISK = 2 * GIB  # a checkpoint, and what is packed of it
_MIN_DESCRIPTORS = 1024
# Read without a call into the kernel; with others each look at the clock takes a microsecond.
_QUICK_CLOCKS = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"})
_CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


@dataclass(frozen=True)
class MachineFacts:
    """What there is. Sizes in bytes; None where the system doesn't tell."""

    levels: tuple[str, ...]  # of the native kernels, best first
    kernel_problem: str | None  # why the best can't be loaded
    num_cores: int
    available_memory: int | None
    shared_memory_dir: Path
    shared_memory: int | None
    cache_dir: Path
    cache_disk: int | None
    num_descriptors: int
    clock_source: str | None
    model: str
    model_dir: Path | None  # where it lies, if it is there
    model_damage: str | None
    packed_formats: tuple[str, ...]


def examine(facts: MachineFacts) -> list[Finding]:
    """Judge a machine. Pure."""
    return [
        _kernels(facts),
        ok("cores", f"{facts.num_cores} for this process"),
        _room(
            "memory",
            facts.available_memory,
            _MIN_MEMORY,
            "available",
            "end other programs, or choose a smaller model and --kv-memory",
        ),
        _room(
            "shared memory",
            facts.shared_memory,
            _MIN_SHARED_MEMORY,
            f"free in {facts.shared_memory_dir}, for KV",
            "mount it larger (docker run --shm-size 1g; in compose SLIPSTREAM_ARENA_SIZE), or "
            "name another folder with --arena-dir",
        ),
        _room(
            "disk",
            facts.cache_disk,
            _MIN_DISK,
            f"free for models in {facts.cache_dir}",
            "remove models with `slipstream model remove`, or name another folder with --cache-dir",
        ),
        _descriptors(facts.num_descriptors),
        _clock(facts.clock_source),
        _model(facts),
    ]


def _kernels(facts: MachineFacts) -> Finding:
    if facts.kernel_problem is None:
        return ok("kernels", f"native, {facts.levels[0]} (of {', '.join(facts.levels)})")
    return judged(
        "kernels",
        f"plain torch: {facts.kernel_problem}",
        remedy="install a C++ compiler and run `make setup`, or reinstall the package; without "
        "native kernels answers are right and slow",
    )


def _room(about: str, size: int | None, needed: int, what: str, remedy: str) -> Finding:
    if size is None:
        return judged(about, "the system doesn't say how much there is", remedy=remedy)
    found = f"{size / GIB:.1f} GiB {what}"
    if size >= needed:
        return ok(about, found)
    return judged(about, f"{found}; {needed / GIB:g} GiB are wanted", remedy=remedy)


def _descriptors(num: int) -> Finding:
    found = f"{num} open files a process"
    if num >= _MIN_DESCRIPTORS:
        return ok("files", found)
    return judged(
        "files", f"{found}; {_MIN_DESCRIPTORS} are wanted", remedy="raise it with `ulimit -n 65536`"
    )


def _clock(source: str | None) -> Finding:
    if source is None:
        return ok("clock", "the system doesn't say which one it is")
    if source in _QUICK_CLOCKS:
        return ok("clock", source)
    return judged(
        "clock",
        f"{source}: each look at it is a call into the kernel",
        remedy="choose another in /sys/devices/system/clocksource, or on the hypervisor",
    )


def _model(facts: MachineFacts) -> Finding:
    about = "model"
    if facts.model_damage is not None:
        return judged(
            about,
            f"{facts.model} in the cache is damaged: {facts.model_damage}",
            remedy=f"`slipstream model pull {facts.model}` makes it again",
            is_problem=True,
        )
    if facts.model_dir is None:
        return judged(
            about,
            f"{facts.model} is not in the cache",
            remedy=f"`slipstream model pull {facts.model}` fetches it; so does the first start",
        )
    packed = ", ".join(facts.packed_formats)
    return ok(about, f"{facts.model}, {f'packed in {packed}' if packed else 'not packed yet'}")


def gather(model: str, cache_dir: Path, shared_memory_dir: Path) -> MachineFacts:
    """Look at this machine."""
    from slipstream.kernels.cpu import loader  # noqa: PLC0415 - keeps --help quick

    try:
        loader.load()
        problem = None
    except loader.NativeUnavailableError as error:
        problem = str(error)
    model_dir, damage, packed = _look_at_model(model, cache_dir)
    return MachineFacts(
        levels=tuple(loader.available_levels()),
        kernel_problem=problem,
        num_cores=len(os.sched_getaffinity(0)),
        available_memory=_available_memory(),
        shared_memory_dir=shared_memory_dir,
        shared_memory=_free(shared_memory_dir),
        cache_dir=cache_dir,
        cache_disk=_free(cache_dir),
        num_descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        clock_source=_read(_CLOCK_SOURCE),
        model=model,
        model_dir=model_dir,
        model_damage=damage,
        packed_formats=packed,
    )


def _look_at_model(model: str, cache_dir: Path) -> tuple[Path | None, str | None, tuple[str, ...]]:
    """Return where it is, what is wrong with it there, and the formats that it is packed in."""
    from slipstream.shared.model.config import model_fingerprint  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.model.packed_weights import is_packed  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.model.store import list_models  # noqa: PLC0415 - keeps --help quick

    cached = next((each for each in list_models(cache_dir) if each.name == model), None)
    if cached is not None and cached.damage is not None:
        return cached.directory, cached.damage, ()
    directory = cached.directory if cached is not None else Path(model).expanduser()
    if not directory.is_dir():
        return None, None, ()
    try:
        fingerprint = model_fingerprint(directory)
    except (OSError, ModelError) as error:
        return directory, str(error), ()
    formats = get_args(WeightFormat)
    return (
        directory,
        None,
        tuple(each for each in formats if is_packed(fingerprint, each, cache_dir)),
    )


def _available_memory() -> int | None:
    """Return what programs may still take: of the machine, or of this container if it is less."""
    found = [
        int(line.split()[1]) * 1024
        for line in (_read(Path("/proc/meminfo")) or "").splitlines()
        if line.startswith("MemAvailable:")
    ]
    limit, used = (_read(Path("/sys/fs/cgroup") / f"memory.{name}") for name in ("max", "current"))
    if limit is not None and used is not None and limit.isdigit():
        found.append(max(0, int(limit) - int(used)))
    return min(found, default=None)


def _free(directory: Path) -> int | None:
    """Return the free bytes where a directory is, or will be made."""
    for each in (directory, *directory.parents):
        if each.is_dir():
            return shutil.disk_usage(each).free
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
