"""
Make a model that is not of 4 bits from one that is, to see what our own rounding to 4 bits loses.

    python bench/rounded_int4.py /tmp/model && slipstream eval --model /tmp/model --format int4

The weights of the layers get noise of a thousandth of their size, so that they lie on no grid: they
are no longer carried over but rounded, against a reference that has the noise too.
"""

import argparse
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from slipstream.shared.config import DEFAULT_MODEL
from slipstream.shared.model.store import default_cache_dir, resolve_model

_NOISE = 1e-3


def main() -> None:
    """Write the directory."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("directory", type=Path, help="where the model is written")
    directory = options.parse_args().directory
    source = resolve_model(DEFAULT_MODEL, default_cache_dir(), report=print)
    shutil.copytree(
        source, directory, ignore=shutil.ignore_patterns("*.safetensors", "slipstream.json")
    )
    rng = np.random.default_rng(0)
    for path in source.glob("*.safetensors"):
        tensors = load_file(path)
        for name, weights in tensors.items():
            if ".layers." in name and weights.ndim > 1:
                noise = rng.standard_normal(weights.shape, np.float32)
                tensors[name] = weights + noise * weights.std() * np.float32(_NOISE)
        save_file(tensors, directory / path.name)


if __name__ == "__main__":
    main()
