"""Nothing in the tree turns data into code, or objects: no way in through a file or a message."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("kernels", "shared", "services", "client", "bench")
# `shelve`, `marshal`, `joblib` and the others are pickles, or as bad, under other names.
MODULES = {
    *("pickle", "_pickle", "cPickle", "pickletools", "shelve", "marshal", "dill", "cloudpickle"),
    *("joblib", "jsonpickle", "xmlrpc", "multiprocessing.connection"),
}
# These unpickle, run, or build any object that their input names.
CALLS = {
    *("torch.load", "torch.jit.load", "torch.package", "np.load", "numpy.load", "np.loadtxt"),
    *("yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all", "joblib.load"),
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "pandas.read_pickle"),
}
_ALLOWED_KEYWORDS = {"allow_pickle", "trust_remote_code", "shell", "weights_only"}


def sources() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def dangers(source: str) -> Iterator[str]:
    """Yield what a source does that it must not."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found = [each.name for each in names]
            case ast.ImportFrom(module=str(module), names=names):
                found = [module, *(f"{module}.{each.name}" for each in names)]
            case ast.Call(func=called, keywords=keywords):
                name = ast.unparse(called)
                yield from [name] if name in CALLS else []
                yield from (
                    f"{name}({each.arg}={ast.unparse(each.value)})"
                    for each in keywords
                    if each.arg in _ALLOWED_KEYWORDS and ast.unparse(each.value) != "False"
                )
                continue
            case _:
                continue
        yield from (
            each for each in found if any(f"{each}.".startswith(f"{one}.") for one in MODULES)
        )


def test_no_source_unpickles_or_runs_data() -> None:
    found = {
        str(path.relative_to(ROOT)): bad
        for path in sources()
        if (bad := list(dangers(path.read_text(encoding="utf-8"))))
    }

    assert len(sources()) > 400
    assert {} == found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "import numpy as np\nnp.load(file, allow_pickle=True)",
        "import numpy as np\nnp.lib.format.read_array(file, allow_pickle=flag)",
        "import yaml\nyaml.load(text, Loader=yaml.Loader)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
        "subprocess.run(command, shell=True)",
        "eval(text)",
    ],
)
def test_each_of_them_would_be_seen(source: str) -> None:
    assert list(dangers(source))


def test_no_file_of_the_tree_is_a_pickle() -> None:
    endings = {".pkl", ".pickle", ".pt", ".pth", ".bin", ".npy", ".npz", ".joblib"}
    named = [
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in endings
    ]

    assert [] == named
