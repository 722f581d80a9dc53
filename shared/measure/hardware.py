"""Machines that need not be here: what their makers' data sheets say."""

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.measure.roofline import Hardware

_TERA = 1e12


def _gpu(
    name: str, *, float32: float, float16: float, int8: float, terabytes_per_s: float
) -> Hardware:
    """Return a GPU from tera-operations a second, dense."""
    rates = {"float32": float32 * _TERA, "float16": float16 * _TERA, "int8": int8 * _TERA}
    return Hardware(name, terabytes_per_s * _TERA, rates)


# Dense rates: where a sheet prints the one with sparsity, half of it.
_GPUS = (
    # NVIDIA A100 80GB data sheet, which says "over 2 TB/s" (1,935 GB/s for PCIe, 2,039 for SXM).
    _gpu("A100-80G", float32=19.5, float16=312, int8=624, terabytes_per_s=2.0),
    # NVIDIA H100 data sheet, SXM: 1,979 and 3,958 with sparsity.
    _gpu("H100", float32=67, float16=989.5, int8=1979, terabytes_per_s=3.35),
    # NVIDIA H200 data sheet, SXM: as the H100, with other memory.
    _gpu("H200", float32=67, float16=989.5, int8=1979, terabytes_per_s=4.8),
    # NVIDIA L4 data sheet: 242 and 485 with sparsity.
    _gpu("L4", float32=30.3, float16=121, int8=242.5, terabytes_per_s=0.3),
    # NVIDIA Ada GPU architecture white paper; float16 with sums in float32.
    _gpu("RTX-4090", float32=82.6, float16=165.2, int8=660.6, terabytes_per_s=1.008),
)
HARDWARE = {each.name.lower(): each for each in _GPUS}


def named_hardware(name: str) -> Hardware:
    """Return a machine by its name, in any case. Raises ConfigurationError."""
    found = HARDWARE.get(name.lower())
    if found is None:
        known = ", ".join(["local", *(each.name for each in _GPUS)])
        raise ConfigurationError(f"no hardware {name!r} is known; there is {known}")
    return found
