"""Records the sharding of every parameter of base and large under each preset, on eight devices.

tests/parallel/test_sharding.py compares the present code with these files. After an intended
change, update the files and check `git diff`:

    python -m benchmarks.golden.sharding
"""

import functools
import json
import math
import re
from typing import Any

import jax
from flax import linen as nn
from jax.sharding import NamedSharding

from bert_jax.models import BertConfig
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.terms import make_terms
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.sharding import Layout
from bert_jax.training.state import init_params
from configs import base, large
from tests.golden.inputs import FOLDER
from tests.parallel.fakes import slices

CONFIGS = {"base": base.get_config, "large": large.get_config}
MESHES = {
    "dp": {"data": 8, "fsdp": 1, "model": 1},
    "fsdp": {"data": 1, "fsdp": 8, "model": 1},
    "tp": {"data": 2, "fsdp": 1, "model": 4},
    "fsdp_tp": {"data": 2, "fsdp": 2, "model": 2},
}


def sharding(name: str, preset: str) -> dict[str, Any]:
    """Returns the contents of the file for the present code."""
    mesh = make_mesh(MESHES[preset], slices())
    layout = Layout.create(mesh, preset)
    boxed = _abstract_params(name)
    params = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        nn.unbox(boxed),
        layout.params(boxed),
    )
    rows: dict[str, dict[str, Any]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        # The layers have one row.
        name = re.sub(
            r"layer_\d+", "layer_*", jax.tree_util.keystr(path, simple=True, separator="/")
        )
        described = {
            "count": 0,
            "shape": list(leaf.shape),
            "divided_over": divided_over(leaf.sharding, leaf.ndim),
            "bytes_per_device": 0,
        }
        row = rows.setdefault(name, described)
        row["count"] += 1
        shard = leaf.sharding.shard_shape(leaf.shape)
        row["bytes_per_device"] += math.prod(shard) * leaf.dtype.itemsize
    return {
        "mesh": MESHES[preset],
        "bytes_per_device": sum(row["bytes_per_device"] for row in rows.values()),
        "parameters": rows,
    }


def divided_over(sharding: NamedSharding, ndim: int) -> list[str]:
    """Returns the mesh axes that each axis of an array is divided over, joined by "+"."""
    found = []
    for axes in [*sharding.spec, *[None] * (ndim - len(sharding.spec))]:
        names = (axes,) if isinstance(axes, str) else axes or ()
        found.append("+".join(name for name in names if sharding.mesh.shape[name] > 1))
    return found


def as_text(values: dict[str, Any]) -> str:
    """Returns JSON with a line for each parameter, for readable diffs."""
    head = json.dumps({key: value for key, value in values.items() if key != "parameters"})
    rows = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in values["parameters"].items()]
    return head[:-1] + ', "parameters": {\n' + ",\n".join(rows) + "\n}}\n"


@functools.cache
def _abstract_params(name: str) -> Any:
    config = CONFIGS[name]()
    model = PreTrainingModel(BertConfig(**config.model), make_terms())
    return jax.eval_shape(lambda: init_params(model, 0))


def main() -> None:
    for name in CONFIGS:
        for preset in MESHES:
            path = FOLDER / f"sharding_{name}_{preset}.json"
            values = sharding(name, preset)
            path.write_text(as_text(values))
            print(f"{path.name}: {values['bytes_per_device']:,} bytes a device")


if __name__ == "__main__":
    main()
