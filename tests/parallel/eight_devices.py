"""Run by test_parallel.py in a process of its own, with eight simulated CPU devices.

    python -m tests.parallel.eight_devices DIR

Reads DIR/one (a checkpoint of one device) and DIR/one.npz (its values); writes
DIR/MESH and DIR/MESH.npz of several meshes, and DIR/results.json.
"""

import json
import re
import sys
import warnings
from pathlib import Path

import jax
import numpy as np

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
# Between any two of these a checkpoint goes.
MESHES = [name for name in CASES if "accumulated" not in name]
# An operation of the compiled text that moves parts of arrays, and what comes of it.
_MOVES = re.compile(r"= (\S.*?) (?:all-gather|all-to-all|collective-permute)(?:-start)?\(")
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")


def train(trainer):
    """Losses of 20 steps, every dropout on; what jax warned of; the shapes that are moved."""
    state, losses = trainer.init_state(), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (first,) = trainer.put([random_batch(0)])
        step = trainer.train_step.lower(state, first).compile()
        for batch in trainer.put(random_batch(step % 2) for step in range(STEPS)):
            before = state
            state, metrics = step(state, batch)
            losses.append(metrics["loss"])
    donated = all(leaf.is_deleted() for leaf in jax.tree.leaves((before.params, before.opt_state)))
    told = [str(warning.message) for warning in caught if "onat" in str(warning.message)]
    moved = {
        tuple(int(size) for size in shape.split(",") if size)
        for result in _MOVES.findall(step.as_text())
        for shape in _SHAPE.findall(result)
    }
    return state, [float(loss) for loss in losses], donated and not told, sorted(moved)


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


def save(folder, name, state):
    checkpointer = Checkpointer(folder / name)
    checkpointer.save(STEPS, state, {"name": name})
    checkpointer.wait()
    checkpointer.close()
    np.savez(folder / f"{name}.npz", **flat(state))


def restore(folder, name, trainer):
    """Whether a checkpoint comes back bit for bit, laid out as the trainer wants it."""
    checkpointer = Checkpointer(folder / name, read_only=True)
    state, _ = checkpointer.restore_newest(trainer.abstract_state())
    checkpointer.close()
    expected, actual = np.load(folder / f"{name}.npz"), flat(state)
    return {
        "equal": set(expected) == set(actual)
        and all(np.array_equal(value, expected[key]) for key, value in actual.items()),
        "laid out": jax.tree.map(lambda x: x.sharding, state) == trainer.shardings,
    }


def evaluate(trainer, state):
    """Sums of the evaluation step over one batch."""
    weights = (np.arange(16) < 13).astype(np.float32)
    (batch,) = trainer.put([random_batch(2) | {"example_weights": weights}])
    sums = trainer.eval_step(state.params, batch, np.log(np.full(98, 1 / 98, np.float32)))
    return {name: float(value) for name, value in sums.items()}


def main(folder: Path) -> None:
    devices = jax.devices()
    assert len(devices) == 8
    results = {"cases": {}, "reference": {}, "restored": {}, "evaluated": {}}
    trainers = {}
    # Microbatches and scanned layers draw dropout masks of their own: they have a run of
    # their own on one device to be compared with.
    for name, overrides in (("plain", SMALL), ("accumulated", ACCUMULATED)):
        trainer = Trainer.from_config(small_config(**overrides), devices[:1])
        results["reference"][name] = train(trainer)[1]
        trainers.setdefault("one", trainer)
    for name, overrides in CASES.items():
        trainer = Trainer.from_config(small_config(**overrides))
        state, losses, donated, moved = train(trainer)
        results["cases"][name] = {
            "losses": losses,
            "layout": layout(state),
            "donated": donated,
            "moved": moved,
        }
        if name in MESHES:
            trainers[name] = trainer
            save(folder, name, state)
    for source in trainers:
        for target, trainer in trainers.items():
            results["restored"][f"{source} -> {target}"] = restore(folder, source, trainer)
    for name in ("one", "fsdp_tp"):
        results["evaluated"][name] = evaluate(trainers[name], trainers[name].init_state())
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
