"""A program that test_contrastive.py runs with eight simulated CPU devices.

    python -m tests.objectives.eight_devices DIR

It writes the loss and the gradients of the small model, and the compiled program, for each layout.
"""

import functools
import sys
from pathlib import Path

import jax
import numpy as np

from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.sharding import Layout
from bert_jax.training.state import abstract_params
from tests.objectives.test_contrastive import gradients, small_model


def main(folder: Path) -> None:
    model, params, batch = small_model()
    for name, fsdp, num_chunks in (("dp", 1, 1), ("dp", 1, 2), ("fsdp", 4, 2)):
        layout = Layout.create(make_mesh({"data": -1, "fsdp": fsdp, "model": 1}), name)
        shardings = layout.params(abstract_params(model))
        step = jax.jit(
            layout.in_scope()(functools.partial(gradients, model, num_chunks=num_chunks)),
            in_shardings=(shardings, layout.batch),
        )
        compiled = step.lower(params, layout.put_batch(batch)).compile()
        loss, grads = compiled(jax.device_put(params, shardings), layout.put_batch(batch))
        file = folder / f"{name}_{num_chunks}"
        np.savez(file.with_suffix(".npz"), loss, *map(np.asarray, jax.tree.leaves(grads)))
        file.with_suffix(".hlo").write_text(compiled.as_text())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
