"""What the values of settings must be."""

from ipaddress import ip_address

from slipstream.shared.errors import ConfigurationError
from slipstream.shared.kv.block_hash import NUM_BITS


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise ConfigurationError, with the option's name and limits, for a value out of range."""
    if not low <= value <= high:
        option = name.replace("_", "-")
        raise ConfigurationError(f"--{option} is {value:g}; it must lie in [{low:g}, {high:g}]")


def check_hash_bits(num_bits: int, *, is_test_mode: bool) -> None:
    """Let tests alone weaken the block hash. Raises ConfigurationError."""
    check_range("block_hash_bits", num_bits, 0, NUM_BITS)
    if num_bits < NUM_BITS and not is_test_mode:
        raise ConfigurationError(
            f"--block-hash-bits {num_bits} makes block hashes collide: it needs --test-mode"
        )


def is_every_address(host: str) -> bool:
    """Tell whether a host stands for all addresses of this machine; a name never does."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
