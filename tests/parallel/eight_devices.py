"""Run by test_parallel.py in a process of its own, with eight simulated CPU devices.

    python -m tests.parallel.eight_devices DIR

Reads DIR/one (a checkpoint of one device) and DIR/state.npz (its values); writes
DIR/eight (a checkpoint of eight) and DIR/results.json.
"""

import json
import sys
import warnings
from pathlib import Path

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.parallel.mesh import make_mesh
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.trainer import Trainer
from tests.small import flat, random_batch, small_config

STEPS = 20
# One layer: each case is a compilation of its own, and a second layer is sharded alike.
SMALL = {"model.num_hidden_layers": 1}
ACCUMULATED = {
    "model.num_hidden_layers": 2,
    "scan_layers": True,
    "train.gradient_accumulation_steps": 2,
}
CASES = {
    "dp": SMALL,
    "fsdp=8": SMALL | {"sharding": "fsdp", "mesh.data": 1, "mesh.fsdp": 8},
    "fsdp=2,data=4": SMALL | {"sharding": "fsdp", "mesh.fsdp": 2},
    "tp model=2": SMALL | {"sharding": "tp", "mesh.model": 2},
    "fsdp_tp": SMALL | {"sharding": "fsdp_tp", "mesh.fsdp": 2, "mesh.model": 2},
    "accumulated, fsdp=4": ACCUMULATED | {"sharding": "fsdp", "mesh.fsdp": 4},
}


def train(trainer):
    """Losses of 20 steps, every dropout on, and what jax warned of."""
    state, losses = trainer.init_state(), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in trainer.put(random_batch(step % 2) for step in range(STEPS)):
            before = state
            state, metrics = trainer.train_step(state, batch)
            losses.append(metrics["loss"])
    donated = all(leaf.is_deleted() for leaf in jax.tree.leaves((before.params, before.opt_state)))
    told = [str(warning.message) for warning in caught if "onat" in str(warning.message)]
    return state, [float(loss) for loss in losses], donated and not told


def layout(state):
    """{name: [shape, one device's shape]} of parameters and first moments."""
    moments = [part for part in state.opt_state if hasattr(part, "mu")]
    tree = {"params": state.params, "mu": moments[0].mu}
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): [
            leaf.shape,
            leaf.addressable_shards[0].data.shape,
        ]
        for path, leaf in leaves
    }


def failure(action):
    try:
        action()
    except UserError as error:
        return str(error)
    return None


def main(folder: Path) -> None:
    devices = jax.devices()
    assert len(devices) == 8
    results = {"cases": {}, "reference": {}, "errors": {}}
    # Microbatches and scanned layers draw dropout masks of their own: they have a run of
    # their own on one device to be compared with.
    for name, overrides in (("plain", SMALL), ("accumulated", ACCUMULATED)):
        trainer = Trainer.from_config(small_config(**overrides), devices[:1])
        results["reference"][name] = train(trainer)[1]
    for name, overrides in CASES.items():
        trainer = Trainer.from_config(small_config(**overrides))
        state, losses, donated = train(trainer)
        results["cases"][name] = {"losses": losses, "layout": layout(state), "donated": donated}
        if name != "fsdp=2,data=4":
            continue
        checkpointer = Checkpointer(folder / "eight")
        checkpointer.save(STEPS, state, {"losses": losses})
        checkpointer.wait()
        checkpointer.close()
        np.savez(folder / "eight.npz", **flat(state))
        restored, _ = Checkpointer(folder / "one").restore_newest(trainer.abstract_state())
        expected = np.load(folder / "one.npz")
        results["one to eight"] = {
            "equal": all(np.array_equal(value, expected[k]) for k, value in flat(restored).items()),
            "sharded": jax.tree.map(lambda x: x.sharding, restored) == trainer.shardings,
        }

    def build(**overrides):
        return lambda: Trainer.from_config(small_config(**overrides))

    results["errors"] = {
        "too many": failure(lambda: make_mesh({"data": 16, "fsdp": 1, "model": 1})),
        "too few": failure(lambda: make_mesh({"data": 2, "fsdp": 2, "model": 1})),
        "not dividing": failure(lambda: make_mesh({"data": -1, "fsdp": 3, "model": 1})),
        "parameter": failure(build(sharding="fsdp", **{"mesh.fsdp": 8, "model.hidden_size": 20})),
        "heads": failure(build(sharding="tp", **{"mesh.model": 8})),
        "right": failure(lambda: make_mesh({"data": -1, "fsdp": 2, "model": 2})),
    }
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
