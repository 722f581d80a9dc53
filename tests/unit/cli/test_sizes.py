"""Sizes as people write them."""

import shutil
from pathlib import Path

import pytest

from slipstream.services.cli.sizes import parse_size
from slipstream.shared.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("512MiB", 512 * 2**20),
        ("2GiB", 2 * 2**30),
        ("1.5 gib", 3 * 2**29),
        ("64m", 64 * 2**20),
        ("1GB", 10**9),
        ("4096", 4096),
    ],
)
def test_a_size_is_read(text: str, num_bytes: int, tmp_path: Path) -> None:
    assert num_bytes == parse_size(text, tmp_path)


def test_a_share_is_of_the_file_system_that_will_hold_the_directory(tmp_path: Path) -> None:
    total = shutil.disk_usage(tmp_path).total

    assert int(total * 0.45) == parse_size("45%", tmp_path / "not" / "there yet")


@pytest.mark.parametrize("text", ["", "-1", "many", "12XB", "0%", "101%", "1e9", "nan"])
def test_what_is_no_size_is_refused_with_an_example(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"write|use MiB"):
        parse_size(text, tmp_path)


@pytest.mark.parametrize("text", ["9" * 400, "9999999TiB"])
def test_a_size_that_no_machine_has_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="above the largest size"):
        parse_size(text, tmp_path)
