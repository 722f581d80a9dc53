"""What the package is to programs that import it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import slipstream.client

ROOT = Path(__file__).parents[3]


def test_what_is_imported_from_it_is_there() -> None:
    assert sorted(slipstream.client.__all__) == slipstream.client.__all__
    assert all(hasattr(slipstream.client, name) for name in slipstream.client.__all__)


def test_packages_that_programs_import_say_that_they_are_typed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    files = project["tool"]["setuptools"]["package-data"]
    typed = {name for name in files if "py.typed" in files[name]}

    assert {"slipstream.client", "slipstream.shared"} == typed
    assert all((ROOT / name.removeprefix("slipstream.") / "py.typed").exists() for name in typed)


def test_a_transport_loads_its_library_when_it_is_used() -> None:
    code = """
import sys
from slipstream.client import Client
found = {"nats", "httpx2"} & {*sys.modules}
with Client("nats://127.0.0.1:1"):
    print(found, {"nats", "httpx2"} & {*sys.modules})
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )

    assert (0, "set() {'nats'}\n") == (done.returncode, done.stdout), done.stderr
