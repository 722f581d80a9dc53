"""Build the native kernels: one library for each ISA level, of the same sources.

A level is chosen when a process starts. Each is optional: without a compiler the plain-torch
reference serves. `SLIPSTREAM_SANITIZE` names sanitizers to build with (`make sanitize`).
"""

import copy
import os
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("kernels/cpu")
# Contraction and fast-math would let the compiler reorder what must give the same bits everywhere.
COMMON = ["-std=c++17", "-O3", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno"]
X86_LEVELS = {
    "amx": ["-march=sapphirerapids"],
    "avx512": ["-march=icelake-server"],
    "avx2": ["-march=haswell"],
    "portable": [],
}
SANITIZERS = os.environ.get("SLIPSTREAM_SANITIZE", "")
if SANITIZERS:
    # Of what goes before these, `-DNDEBUG -fwrapv` are Python's own: asserts are wanted here, and
    # no sum may wrap. The warning is GCC's, about its own headers.
    COMMON += ["-O1", "-g", "-fno-omit-frame-pointer", "-UNDEBUG", "-fno-wrapv"]
    COMMON += [f"-fsanitize={SANITIZERS}", "-fno-sanitize-recover=all", "-Wno-uninitialized"]


def extension(level: str, flags: list[str]) -> Extension:
    """Return the library of a level; it is loaded through ctypes, not imported."""
    return Extension(
        f"slipstream.kernels.cpu._{level}",
        sources=sorted(str(path) for path in FOLDER.glob("*.cpp")),
        depends=["setup.py", *sorted(str(path) for path in FOLDER.glob("*.h"))],
        define_macros=[("SLIPSTREAM_LEVEL", f'"{level}"')],
        extra_compile_args=[*COMMON, *flags],
        extra_link_args=["-pthread", *([f"-fsanitize={SANITIZERS}"] if SANITIZERS else [])],
        optional=not SANITIZERS,
    )


class BuildLevels(build_ext):
    """Compile the levels side by side."""

    def initialize_options(self) -> None:
        """Take as many as there are cores, unless `--parallel` says otherwise."""
        super().initialize_options()
        self.parallel = os.cpu_count()

    def build_extension(self, ext: Extension) -> None:
        """Build in a folder of the level's own: their objects have the same names."""
        apart = copy.copy(self)
        apart.build_temp = str(Path(self.build_temp) / ext.name)
        build_ext.build_extension(apart, ext)


levels = X86_LEVELS if platform.machine().lower() in {"x86_64", "amd64"} else {"portable": []}
setup(
    cmdclass={"build_ext": BuildLevels},
    ext_modules=[extension(level, flags) for level, flags in levels.items()],
)
