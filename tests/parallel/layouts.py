"""A program that test_layouts.py runs with eight simulated CPU devices.

    python -m tests.parallel.layouts DIR

For each case and layout, it takes three steps and writes the losses, the norms of the gradients and
the final state to DIR/CASE_LAYOUT.npz. A checkpoint of each sharded layout is restored in the other
one, and written to DIR/LAYOUT_as_OTHER.npz.
"""

import sys
from contextlib import closing
from pathlib import Path

import jax
import numpy as np

from bert_jax.benchmark import synthetic_batches
from bert_jax.objectives.contrastive import Contrastive
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.sharding import Layout
from bert_jax.pretraining.build import make_trainer
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.stages import resolve_stages
from bert_jax.training.trainer import Trainer
from tests.objectives import test_contrastive
from tests.small import flat, small_config

STEPS = 3
LAYOUTS = {"dp": 1, "fsdp": 4, "zero1": 4}
ACCUMULATED = {"train.gradient_accumulation_steps": 2}
CASES = {
    "tied": {},
    "muon": ACCUMULATED | {"optimizer.name": "muon", "model.tied_decoder": False},
    "lamb": ACCUMULATED | {"optimizer.name": "lamb", "data.max_pairs_per_row": 2},
    "shared": ACCUMULATED | {"dtype": "bfloat16", "model.layer_groups": 1},
    "embeddings": {},
}
# The cases whose checkpoint is restored in the other layout.
SAVED = "muon"


def trainer_of(case: str, layout: str) -> Trainer:
    layers = {"model.num_hidden_layers": 2 if case == "shared" else 1}
    sizes = {"mesh.fsdp": LAYOUTS[layout], "sharding": layout}
    config = small_config(**layers | sizes | CASES[case])
    if case != "embeddings":
        return make_trainer(config)
    mesh = make_mesh(config.mesh, sharding=layout)
    model, _ = test_contrastive.make_model("encoder")
    objective = Contrastive("mnr", num_chunks=2)
    return Trainer.create(
        config, Layout.create(mesh, layout), model, objective, resolve_stages(config)
    )


def batches_of(case: str, trainer: Trainer):
    if case == "embeddings":
        while True:
            yield test_contrastive.make_batch()
    (first,) = trainer.stages
    yield from synthetic_batches(trainer, first, first.batch_size)


def main(folder: Path) -> None:
    assert len(jax.devices()) == 8
    for case in CASES:
        for layout in LAYOUTS:
            trainer = trainer_of(case, layout)
            state, found = trainer.init_state(), []
            batches = trainer.put(batches_of(case, trainer))
            for _, batch in zip(range(STEPS), batches, strict=False):
                state, metrics = trainer.train_step(state, batch)
                found.append([float(metrics["loss"]), float(metrics["grad_norm"])])
            np.savez(folder / f"{case}_{layout}.npz", metrics=found, **flat(state))
            if case == SAVED and layout != "dp":
                with closing(Checkpointer(folder / layout)) as checkpointer:
                    checkpointer.save(STEPS, state, {})
    for saved, other in (("fsdp", "zero1"), ("zero1", "fsdp")):
        trainer = trainer_of(SAVED, other)
        with closing(Checkpointer(folder / saved, read_only=True)) as checkpointer:
            state, _ = checkpointer.restore_newest(trainer.abstract_state())
        np.savez(folder / f"{saved}_as_{other}.npz", **flat(state))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
