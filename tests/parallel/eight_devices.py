"""A program that test_parallel.py runs with eight simulated CPU devices.

    python -m tests.parallel.eight_devices DIR

Reads DIR/one (a checkpoint of one device) and DIR/one.npz (its values). Writes DIR/fsdp_tp,
DIR/fsdp_tp.npz and DIR/results.json. Without DIR/one, it only runs the attention kernels.
"""

import contextlib
import dataclasses
import functools
import json
import re
import sys
import unittest.mock
import warnings
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models import BertConfig, gpu_attention, tpu_attention
from bert_jax.models.encoder import Encoder
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.sharding import Layout
from bert_jax.pretraining.build import make_trainer
from bert_jax.pretraining.evaluation import written_text
from bert_jax.training.checkpoint import Checkpointer
from tests.small import flat, random_batch, small_config

STEPS = 20
# The model has one layer, because each case is compiled and a second layer is sharded alike.
SMALL = {"model.num_hidden_layers": 1}
ACCUMULATED = SMALL | {"train.gradient_accumulation_steps": 2}
CASES = {
    "fsdp_tp": SMALL | {"sharding": "fsdp_tp", "mesh.fsdp": 2, "mesh.model": 2},
    "accumulated, fsdp=4": ACCUMULATED | {"sharding": "fsdp", "mesh.fsdp": 4},
    "accumulated, zero1": ACCUMULATED | {"sharding": "zero1", "mesh.fsdp": 4},
}
KERNEL_MESH = {"data": 2, "fsdp": 2, "model": 2}
# Matches the result of an operation that moves parts of arrays between devices.
_MOVES = re.compile(r"= (\S.*?) (?:all-gather|all-to-all|collective-permute)(?:-start)?\(")
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")


def train(trainer, state):
    """Takes 20 steps with dropout.

    Returns:
      The state, the losses, whether the state was donated, and the shapes moved between devices.
    """
    losses = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (first,) = trainer.put([random_batch(0)])
        step = trainer.compiled_train_step.lower(state, first, trainer.frozen).compile()
        for batch in trainer.put(random_batch(step % 2) for step in range(STEPS)):
            before = state
            state, metrics = step(state, batch, trainer.frozen)
            losses.append(metrics["loss"])
    donated = all(leaf.is_deleted() for leaf in jax.tree.leaves((before.params, before.opt_state)))
    warned = any("onat" in str(warning.message) for warning in caught)
    moved = {
        tuple(int(size) for size in shape.split(",") if size)
        for result in _MOVES.findall(step.as_text())
        for shape in _SHAPE.findall(result)
    }
    return state, [float(loss) for loss in losses], donated and not warned, sorted(moved)


def layout(state):
    """Returns {name: [shape, shape on one device]} for parameters and first moments."""
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
    with contextlib.closing(Checkpointer(folder / name)) as checkpointer:
        checkpointer.save(STEPS, state, {"name": name})
    np.savez(folder / f"{name}.npz", **flat(state))


def restore(folder, name, trainer):
    """Returns whether a checkpoint is restored bit for bit, and in the trainer's layout."""
    with contextlib.closing(Checkpointer(folder / name, read_only=True)) as checkpointer:
        state, _ = checkpointer.restore_newest(trainer.abstract_state())
    expected, actual = np.load(folder / f"{name}.npz"), flat(state)
    return {
        "equal": set(expected) == set(actual)
        and all(np.array_equal(value, expected[key]) for key, value in actual.items()),
        "laid out": jax.tree.map(lambda x: x.sharding, state) == trainer.shardings,
    }


def evaluate(trainer, state):
    """Returns the sums of the evaluation step over one batch."""
    weights = (np.arange(16) < 13).astype(np.float32)
    (batch,) = trainer.put([random_batch(2) | {"example_weights": weights}])
    sums, _ = trainer.eval_step(state.params, batch, np.log(np.full(98, 1 / 98, np.float32)))
    return {name: float(value) for name, value in flat(sums).items()}


def kernel_on_a_mesh(platform, kernels, length):
    """Compares an interpreted attention kernel on a mesh with plain float32 attention.

    Both have the same dropout masks. The reference runs on one device. Differences of output and
    gradients are relative to the largest value.
    """
    # The kernel on one device is no reference here: XLA of jax 0.12 sums the products that give its
    # gradients of weights in bfloat16 on CPU, which makes them four times less exact.
    fused = functools.partial(kernels.fused_attention, interpret=True)
    config = BertConfig(10, 256, 1, 4, 64, dtype=jnp.bfloat16, fused_attention=platform)
    if platform == "tpu":
        config = dataclasses.replace(config, joins_heads=True, stores_activations=True)
    generator = np.random.default_rng(0)
    hidden = jnp.asarray(generator.normal(size=(8, length, 256)), jnp.bfloat16)
    mask = np.ones((8, length), np.int32)
    mask[3, 100:] = 0
    keys = {"dropout": jax.random.key(3)}
    plain = Encoder(dataclasses.replace(config, dtype=jnp.float32, fused_attention=""))
    params = nn.unbox(jax.jit(plain.init, static_argnums=3)(keys["dropout"], hidden, mask, True))

    def output_and_gradients(encoder, params, hidden, mask):
        def loss(params, hidden):
            output = encoder.apply(params, hidden, mask, False, rngs=keys).astype(jnp.float32)
            # Nothing reads the output at padding, which differs.
            output *= mask[..., None]
            return jnp.mean(output**2 * jnp.arange(256)), output

        (d_params, d_hidden), output = jax.grad(loss, (0, 1), has_aux=True)(params, hidden)
        d_attention = dict(d_params["params"]["layer_0"]["attention"])
        # This gradient is only rounding error: adding a constant to all inputs of a softmax has
        # no effect.
        d_attention.pop("key_bias")
        return output, d_hidden, d_attention

    def difference(found, expected):
        found, expected = (np.asarray(x, np.float64) for x in (found, expected))
        return float(np.abs(found - expected).max() / np.abs(expected).max())

    exact = hidden.astype(jnp.float32), mask
    expected = jax.jit(output_and_gradients, static_argnums=0)(plain, params, *exact)
    with unittest.mock.patch.object(kernels, "fused_attention", fused):
        layout = Layout.create(make_mesh(KERNEL_MESH), "fsdp_tp")

        def laid_out(*arguments):
            with layout.in_scope():
                return output_and_gradients(Encoder(config), *arguments)

        rows = jax.device_put((hidden, mask), layout.batch)
        found = jax.jit(laid_out)(params, *rows)
        return {
            "difference": max(jax.tree.leaves(jax.tree.map(difference, found, expected))),
            "sharded": "shard_map" in str(jax.make_jaxpr(laid_out)(params, *rows)),
        }


def masks_on_a_mesh():
    """Returns the number of masks in a row before and after each step that fills them."""
    fused = functools.partial(tpu_attention.fused_attention, interpret=True)
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "max_position_embeddings": 128}
    keys = {f"model.{name}": size for name, size in sizes.items()} | {"dtype": "bfloat16"}
    tokenizer = unittest.mock.Mock(special_ids=[4], mask_id=4, unk_id=1)
    tokenizer.special_tokens.mask = "4"
    tokenizer.decode = lambda ids: " ".join(map(str, ids))
    ids = np.full((16, 128), 5, np.int32)
    batch = {"original_ids": ids, "token_type_ids": 0 * ids, "attention_mask": ids // 5}
    batch["input_ids"] = np.where(np.arange(128) < 16, 4, ids)
    with (
        unittest.mock.patch.object(tpu_attention, "fused_attention", fused),
        unittest.mock.patch("bert_jax.training.trainer._attention_kernel", lambda device: "tpu"),
    ):
        trainer = make_trainer(small_config(**SMALL | keys))
        (rows,) = trainer.put([batch])
        texts = written_text(trainer, trainer.init_state().params, rows, tokenizer)["texts"]
    return [text.split().count("_") for text in texts]


def main(folder: Path) -> None:
    devices = jax.devices()
    assert len(devices) == 8
    if not (folder / "one").exists():
        cases = [("tpu", tpu_attention, 128), ("gpu", gpu_attention, 256)]
        found = {platform: kernel_on_a_mesh(platform, *case) for platform, *case in cases}
        found["masks"] = masks_on_a_mesh()
        (folder / "kernel.json").write_text(json.dumps(found))
        return
    results = {"cases": {}, "reference": {}, "evaluated": {}}
    trainers = {}
    # Microbatches have other dropout masks, so they have their own reference.
    references = {"plain": SMALL, "accumulated": ACCUMULATED}
    for name, overrides in references.items():
        trainer = make_trainer(small_config(**overrides), devices[:1])
        if name == "plain":
            state = trainer.init_state()
            trainers["one"], params = trainer, jax.device_get(state.params)
        else:
            state = trainer.state_of(params)
        results["reference"][name] = train(trainer, state)[1]
    for name, overrides in CASES.items():
        trainer = make_trainer(small_config(**overrides))
        # One case shows that devices draw the weights that one draws.
        state = trainer.init_state() if name == "fsdp_tp" else trainer.state_of(params)
        state, losses, donated, moved = train(trainer, state)
        results["cases"][name] = {
            "losses": losses,
            "layout": layout(state),
            "donated": donated,
            "moved": moved,
        }
        if name == "fsdp_tp":
            trainers[name] = trainer
            save(folder, name, state)
    results["restored"] = restore(folder, "one", trainers["fsdp_tp"])
    for name in ("one", "fsdp_tp"):
        results["evaluated"][name] = evaluate(trainers[name], trainers[name].state_of(params))
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
