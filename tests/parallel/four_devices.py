"""A program that test_optimizers.py runs with four simulated CPU devices.

    python -m tests.parallel.four_devices FILE

Writes the losses of each optimizer on one device and under each layout of four to FILE.
"""

import json
import sys
from pathlib import Path

import jax

from bert_jax.pretraining.build import make_trainer
from tests.small import random_batch, small_config

OPTIMIZERS = ("muon", "stable_adamw")
LAYOUTS = {
    "dp": {"sharding": "dp"},
    "fsdp": {"sharding": "fsdp", "mesh.fsdp": 4},
    "tp": {"sharding": "tp", "mesh.model": 4},
    "fsdp_tp": {"sharding": "fsdp_tp", "mesh.fsdp": 2, "mesh.model": 2},
}
# The model has one layer, because each case is compiled and a second layer is sharded alike.
SMALL = {"model.num_hidden_layers": 1}


def train(devices, optimizer, **values):
    """Returns the losses of eight steps with dropout, and whether a kernel's moment is sharded."""
    config = small_config(**SMALL, **values, **{"optimizer.name": optimizer})
    trainer = make_trainer(config, devices)
    state, losses = trainer.init_state(), []
    for batch in trainer.put(random_batch(step % 2) for step in range(8)):
        state, metrics = trainer.train_step(state, batch)
        losses.append(float(metrics["loss"]))
    kernels = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state)
        if "['intermediate']['kernel']" in jax.tree_util.keystr(path)
    ]
    sharded = [leaf.addressable_shards[0].data.size < leaf.size for leaf in kernels]
    return {"losses": losses, "sharded": sharded}


def main(file: Path) -> None:
    results = {}
    for optimizer in OPTIMIZERS:
        results[optimizer] = train(jax.devices()[:1], optimizer)
        for name, values in LAYOUTS.items():
            results[f"{optimizer}, {name}"] = train(None, optimizer, **values)
    file.write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
