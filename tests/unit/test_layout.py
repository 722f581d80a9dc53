"""The rails: where files may stand, which way imports point, what starts without torch."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from slipstream.shared.bus.subjects import PREFIX, TOPICS

ROOT = Path(__file__).parents[2]
PARTS = ("kernels", "shared", "services", "client")
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))
MAX_NUM_LINES = 400
MAX_NUM_SERVICE_LINES = 100

# The layers of `shared`: what each may import of ours. The others may import these, never be
# imported by them.
LEAVES = {"shared.ids", "shared.errors", "shared.version"}
# A struct of messages, from a module that imports nothing of ours.
MESSAGES = LEAVES | {"shared.messages", "shared.telemetry.context"}
LAYERS = {
    "shared.ids": set(),
    "shared.errors": set(),
    "shared.rarely": set(),
    "shared.version": set(),
    "shared.telemetry.context": set(),
    "shared.messages": MESSAGES,
    "shared.bus": MESSAGES | {"shared.bus", "shared.rarely"},
    "shared.lifecycle": MESSAGES | {"shared.bus", "shared.rarely"},
}
WITHOUT_TORCH = ("services.scheduler", "services.kv_manager", "services.gateway", "client")


def module_of(path: Path) -> str:
    """Return a file's module without `slipstream.` in front: `shared.bus.bus`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


MODULES = {module_of(path): path for path in SOURCES}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(path: Path) -> Iterator[str]:
    """Yield every module a file imports anywhere: at its top, in functions, for the checker."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_module = name.removeprefix("slipstream.") in MODULES
                yield name if is_module else str(node.module)


def ours(path: Path) -> set[str]:
    """Return what a file imports of ours, without `slipstream.` in front."""
    names = (name for name in imported(path) if name.split(".")[0] == "slipstream")
    return {name.removeprefix("slipstream.") for name in names}


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def offences(package: str, allowed: set[str]) -> list[str]:
    """Return the imports of a package that go elsewhere than allowed."""
    return [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if is_within(module, package)
        for name in sorted(ours(path))
        if not any(is_within(name, part) for part in allowed)
    ]


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code from the repository's root, which `-c` puts on the path."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_kernels_is_no_package_of_its_own() -> None:
    """Hugging Face transformers probes for a distribution of that name and would take ours."""
    spec = importlib.util.find_spec("kernels")
    origin = spec.origin if spec else None

    assert origin is None or ROOT not in Path(origin).parents


def test_transformers_is_not_misled_by_our_kernels() -> None:
    code = "import transformers.integrations.hub_kernels, kernels; print(kernels.__file__)"
    done = run_python(code)

    assert (0, "None\n") == (done.returncode, done.stdout), done.stderr


@pytest.mark.parametrize("folder", ["kernels", "shared", "services", "tests"])
def test_no_folder_is_a_regular_package(folder: str) -> None:
    assert [] == list((ROOT / folder).rglob("__init__.py"))


def test_client_alone_has_a_short_name() -> None:
    """What programs import stands in one `__init__.py`; see docs/adr/0001."""
    assert [ROOT / "client/__init__.py"] == list((ROOT / "client").rglob("__init__.py"))


def test_packages_of_the_distribution_are_the_folders() -> None:
    """No tool can discover packages through a mapping, so the list is kept by hand."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = project["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for path in SOURCES} | {Path(part) for part in PARTS}
    has_code = {".".join(("slipstream", *folder.parts)) for folder in folders}
    is_empty = {
        name for name in listed if not list(ROOT.joinpath(*name.split(".")[1:]).glob("*.py"))
    }

    assert sorted(listed) == listed
    assert has_code == (set(listed) - is_empty) | {f"slipstream.{part}" for part in PARTS}


def test_kernels_imports_nothing_of_ours() -> None:
    assert [] == offences("kernels", {"kernels"})


def test_shared_imports_no_service() -> None:
    assert [] == offences("shared", {"shared", "kernels"})


def test_client_imports_only_what_is_shared() -> None:
    assert [] == offences("client", {"client", "shared"})


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_shared_point_down(layer: str) -> None:
    assert [] == offences(layer, LAYERS[layer])


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_shared_know_no_tensors(layer: str) -> None:
    found = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if is_within(module, layer)
        for name in imported(path)
        if name.split(".")[0] in {"torch", "transformers", "numpy", "safetensors", "gguf"}
    ]

    assert [] == found


def services() -> list[str]:
    return sorted(path.name for path in (ROOT / "services").iterdir() if path.is_dir())


@pytest.mark.parametrize("service", services())
def test_no_service_imports_another(service: str) -> None:
    """The command line puts them together: it may import each one's `main`, and the client."""
    allowed = {"shared", "kernels", f"services.{service}"}
    if service == "cli":
        allowed |= {f"services.{other}.main" for other in services()} | {"client"}

    assert [] == offences(f"services.{service}", allowed)


def test_what_we_import_of_ours_exists() -> None:
    """A folder is no module: importing one would bring nothing."""
    missing = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        for name in sorted(ours(path))
        if name not in MODULES
    ]

    assert [] == missing


def cycle_through(module: str, done: set[str], trail: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the modules of an import cycle, or none."""
    if module in trail:
        return (*trail[trail.index(module) :], module)
    if module in done:
        return ()
    for name in sorted(ours(MODULES[module]) & set(MODULES)):
        if found := cycle_through(name, done, (*trail, module)):
            return found
    done.add(module)
    return ()


def test_imports_make_no_cycle() -> None:
    """Nor do those for the type checker only, nor those inside functions."""
    done: set[str] = set()
    cycles = [" -> ".join(found) for module in MODULES if (found := cycle_through(module, done))]

    assert [] == cycles


# Stands in front of every finder, as if the distributions were not installed.
BLOCKED = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        blocked = ("torch", "transformers", "kernels", "slipstream.kernels")
        if any(name == one or name.startswith(one + ".") for one in blocked):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocker())
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


@pytest.mark.parametrize("part", WITHOUT_TORCH)
def test_what_needs_no_torch_starts_without(part: str) -> None:
    names = [f"slipstream.{module}" for module in MODULES if is_within(module, part)]
    assert names, "there is no such part"
    done = run_python(BLOCKED, *names)

    assert 0 == done.returncode, done.stderr


def test_command_line_starts_without_torch() -> None:
    names = [f"slipstream.{module}" for module in MODULES if module == "services.cli.main"]
    done = run_python(BLOCKED, *names)

    assert 0 == done.returncode, done.stderr


# As the entry point does it, up to where a service's own modules are loaded.
LIGHT = """
import importlib, sys
from slipstream.services.cli import main
main.import_structlog()
importlib.import_module(sys.argv[1])
print(*{name.partition(".")[0] for name in sys.modules} & set(sys.argv[2:]))
"""


@pytest.mark.parametrize("service", ["decode", "prefill", "draft", "kv_manager"])
def test_service_holds_no_library_that_it_does_not_use(service: str) -> None:
    """Each of these takes megabytes in every process for as long as it lives."""
    heavy = ["torch", "transformers", "tokenizers", "jinja2", "gguf", "safetensors", "yaml"]
    heavy += ["typer", "click", "rich", "pygments", "opentelemetry", "requests"]
    heavy += ["prometheus_client", "llguidance"]
    done = run_python(LIGHT, f"slipstream.services.{service}.main", *heavy)

    assert (0, "\n") == (done.returncode, done.stdout), done.stderr


def test_scheduler_loads_the_grammar_library_for_the_first_constraint_only() -> None:
    done = run_python(LIGHT, "slipstream.services.scheduler.main", "llguidance")

    assert (0, "\n") == (done.returncode, done.stdout), done.stderr


def strings_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every string of a file that is no docstring, with its line."""
    tree = tree_of(path)
    statements = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    docstrings = {id(value) for value in statements if isinstance(value, ast.Constant)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            yield node.lineno, node.value


def test_subjects_are_written_in_one_place() -> None:
    found = [
        f"{module}:{line}"
        for module, path in MODULES.items()
        if module != "shared.bus.subjects"
        for line, text in strings_of(path)
        if PREFIX in text
    ]

    assert [] == found


def documents() -> list[Path]:
    fixed = ("README.md", "compose.yaml", "deploy/nats.conf")
    known = [ROOT / name for name in fixed] + sorted((ROOT / "docs").rglob("*.md"))
    return [path for path in known if path.exists()]


_SUBJECT = re.compile(rf"{re.escape(PREFIX)}(?:\[?\.(?:[\w-]+|<[\w ]+>|{{\w+}}|\*|>(?!\w))\]?)*")


def is_declared(subject: str) -> bool:
    """Tell whether a subject, with placeholders or wildcards, is one of a topic."""
    tokens = re.sub(r"<[\w ]+>|{\w+}", "*", subject).split(".")
    for topic in TOPICS:
        wanted = topic.wildcard.split(".")
        if tokens[-1] == ">" and len(wanted) >= len(tokens):
            tokens_here, wanted = tokens[:-1], wanted[: len(tokens) - 1]
        else:
            tokens_here = tokens
        if len(tokens_here) == len(wanted) and all(
            one == other or "*" in {one, other}
            for one, other in zip(tokens_here, wanted, strict=True)
        ):
            return True
    return False


@pytest.mark.parametrize(
    ("text", "subjects"),
    [
        ("send to `slipstream.v1.generate`.", ["slipstream.v1.generate"]),
        ("`slipstream.v1.kv.<host_id>.<verb>`", ["slipstream.v1.kv.<host_id>.<verb>"]),
        ("`slipstream.v1.generate[.<model>]`", ["slipstream.v1.generate[.<model>]"]),
        ("under slipstream.v1.> live", ["slipstream.v1.>"]),
    ],
)
def test_subjects_are_found_in_text(text: str, subjects: list[str]) -> None:
    assert subjects == _SUBJECT.findall(text)


@pytest.mark.parametrize(
    ("subject", "is_known"),
    [
        ("slipstream.v1.generate", True),
        ("slipstream.v1.generate.smollm2-135m", True),
        ("slipstream.v1.kv.<host_id>.lease", True),
        ("slipstream.v1.kv.>", True),
        ("slipstream.v1.>", True),
        ("slipstream.v1.cancel", False),
        ("slipstream.v1.complete", False),
        ("slipstream.v1.kv.<host_id>", False),
        ("slipstream.v1.report.a.b", False),
    ],
)
def test_subjects_are_told_from_others(subject: str, *, is_known: bool) -> None:
    assert is_known == is_declared(subject)


def test_subjects_in_documents_exist() -> None:
    unknown = [
        f"{path.relative_to(ROOT)}: {subject}"
        for path in documents()
        for found in _SUBJECT.findall(path.read_text(encoding="utf-8"))
        for subject in {re.sub(r"\[[^]]*\]?", "", found), re.sub(r"[\[\]]", "", found)}
        if subject != PREFIX and not is_declared(subject)
    ]

    assert [] == unknown


def num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_long_files_give_a_reason() -> None:
    """The docstring of a file of over 400 lines says that it is "long because"."""
    files = [*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
    unexplained = [
        f"{path.relative_to(ROOT)}: {num_lines(path)} lines"
        for path in files
        if num_lines(path) > MAX_NUM_LINES
        and "long because" not in " ".join((ast.get_docstring(tree_of(path)) or "").split())
    ]

    assert [] == unexplained


def test_edge_of_a_service_is_small() -> None:
    """It decodes, calls a plain object and publishes; decisions stand beside it."""
    large = [
        f"{path.relative_to(ROOT)}: {num_lines(path)} lines"
        for path in (ROOT / "services").glob("*/service.py")
        if num_lines(path) >= MAX_NUM_SERVICE_LINES
    ]

    assert [] == large
