"""Which libraries the loader finds."""

import platform
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


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines have one level")
@pytest.mark.parametrize("level", loader.LEVELS)
def test_every_level_is_built_of_these_sources(level: str) -> None:
    """Levels are optional, and the next one serves: without one all is just slower."""
    library = loader._path(level)
    folder = Path(loader.__file__).parent
    newest = max(path.stat().st_mtime for kind in ("*.cpp", "*.h") for path in folder.glob(kind))

    assert library is not None, "it was not built"
    assert library.stat().st_mtime >= newest, "it is left over from an earlier build"
