"""Which libraries the loader finds."""

from pathlib import Path

import pytest

from slipstream.kernels.cpu import loader
from slipstream.kernels.cpu.loader import NativeUnavailableError


def test_a_folder_of_libraries_takes_the_place_of_the_installed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is looked for: a level that it lacks isn't taken from elsewhere."""
    monkeypatch.setenv("SLIPSTREAM_KERNELS_DIR", str(tmp_path))

    assert [] == loader.available_levels()

    (tmp_path / "_portable.of-another-build.so").write_bytes(b"no library")

    assert ["portable"] == loader.available_levels()


def test_a_library_that_cant_be_loaded_is_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_portable.so").write_bytes(b"no library")
    monkeypatch.setenv("SLIPSTREAM_KERNELS_DIR", str(tmp_path))

    with pytest.raises(NativeUnavailableError, match="no native kernels"):
        loader.load.__wrapped__("portable")
