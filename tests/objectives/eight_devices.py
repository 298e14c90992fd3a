"""A program that test_contrastive.py runs with eight simulated CPU devices.

    python -m tests.objectives.eight_devices words|encoder DIR

It writes the loss and the gradients of a small model, and the compiled program, for each layout.
"""

import functools
import sys
from pathlib import Path

import jax
import numpy as np

from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.sharding import Layout
from bert_jax.training.state import abstract_params
from tests.objectives.test_contrastive import gradients, make_batch, make_model


def main(name: str, folder: Path) -> None:
    model, params = make_model(name)
    for preset, fsdp in {"words": {"dp": 1}, "encoder": {"dp": 1, "fsdp": 4}}[name].items():
        layout = Layout.create(make_mesh({"data": -1, "fsdp": fsdp, "model": 1}), preset)
        shardings = layout.replicated
        if name == "encoder":
            shardings = layout.params(abstract_params(model))
        step = jax.jit(
            layout.in_scope()(functools.partial(gradients, model, num_chunks=2)),
            in_shardings=(shardings, layout.batch),
        )
        placed = jax.device_put(params, shardings), layout.put_batch(make_batch())
        compiled = step.lower(*placed).compile()
        loss, grads = compiled(*placed)
        np.savez(folder / f"{preset}.npz", loss, *map(np.asarray, jax.tree.leaves(grads)))
        (folder / f"{preset}.hlo").write_text(compiled.as_text())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
