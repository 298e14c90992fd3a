"""A program that tests of contrastive losses and of rankings run with eight simulated CPU devices.

    python -m tests.objectives.eight_devices words|encoder|lists|multi_vector|... DIR

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
from tests.objectives import test_contrastive, test_kinds, test_ranking


def main(name: str, folder: Path) -> None:
    tests = test_ranking if name == "lists" else test_contrastive
    if name in test_kinds.MODELS:
        tests = test_kinds
    model, params = tests.make_model(name)
    for preset, fsdp in ({"dp": 1} if name == "words" else {"dp": 1, "fsdp": 4}).items():
        layout = Layout.create(make_mesh({"data": -1, "fsdp": fsdp, "model": 1}), preset)
        shardings = layout.replicated
        if name != "words":
            shardings = layout.params(abstract_params(model))
        step = jax.jit(
            layout.in_scope()(functools.partial(tests.gradients, model, num_chunks=2)),
            in_shardings=(shardings, layout.batch),
        )
        placed = jax.device_put(params, shardings), layout.put_batch(tests.make_batch())
        compiled = step.lower(*placed).compile()
        loss, grads = compiled(*placed)
        np.savez(folder / f"{preset}.npz", loss, *map(np.asarray, jax.tree.leaves(grads)))
        (folder / f"{preset}.hlo").write_text(compiled.as_text())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
