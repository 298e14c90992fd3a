"""Estimates a training step of transformers' Flax BERT-large on one TPU chip.

    PYTHONPATH=. OTHER_VENV/bin/python benchmarks/flax_bert_cycles.py --batch_size=64 \\
        --length=128 --predictions=20

docs/performance.md compares bert_jax with these figures. Like `bert_jax.compile_check`, this adds
up the cycle counts of the TPU compiler and needs no TPU. OTHER_VENV needs 'transformers<5' (the
last releases with Flax classes), 'jax[tpu]', flax and optax.

The step is FlaxBertForPreTraining unchanged: bfloat16 with float32 parameters, all dropout (flax
draws one attention mask for all sequences and heads), masked-LM head and loss on every position,
next-sentence loss, global-norm clipping and AdamW from optax. Compiling the 24 unrolled layers
takes ten minutes on one core. --depths=4,8 compiles models of 4 and 8 layers instead and
extrapolates to 24.

MFU is printed twice: counting the FLOPs of only the masked positions in the head, as for bert_jax,
and counting all positions, which this head computes.
"""

import argparse
import os
import time

# Keep transformers from loading torch and TensorFlow.
os.environ.update(USE_TORCH="0", USE_TF="0")

import jax
import jax.numpy as jnp
import optax
import transformers
from jax.sharding import SingleDeviceSharding
from transformers import BertConfig, FlaxBertForPreTraining

from bert_jax import models
from bert_jax.objectives.terms import make_terms
from bert_jax.tpu import hlo, topologies
from bert_jax.training import flops

# BERT-large. The two BertConfig classes have the same defaults for everything else.
LAYERS = 24
SIZES = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topology", default="v5e:1x1", help="a topology of one chip")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument(
        "--predictions", type=int, default=20, help="masked positions in each sequence"
    )
    parser.add_argument(
        "--depths", default=str(LAYERS), help="depths to compile: 24, or two such as 4,8"
    )
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    topology = topologies.find(args.topology)
    device = topologies.devices(topology)[0]
    print(f"transformers {transformers.__version__}, jax {jax.__version__}", flush=True)
    depths = [int(depth) for depth in args.depths.split(",")]
    cycles = [compiled_cycles(args, depth, device) for depth in depths]
    layer_cycles = (cycles[-1] - cycles[0]) / max(1, depths[-1] - depths[0])
    step = cycles[-1] + layer_cycles * (LAYERS - depths[-1])
    seconds = step / topology.chip.clock_hz
    shape = f"{args.batch_size} sequences of {args.length}"
    print(f"{topology.name}, {LAYERS} layers, {shape}: {step / 1e6:.1f} M cycles", flush=True)
    ours = models.BertConfig(vocab_size=30522, num_hidden_layers=LAYERS, **SIZES)
    for counted in (args.predictions, args.length):
        work = flops.pretraining_flops_per_sequence(ours, make_terms(), args.length, counted)
        mfu = args.batch_size * work / seconds / topology.chip.peak_flops_per_second
        print(f"estimated MFU, {counted} positions counted in the head: {mfu:.1%}")


def compiled_cycles(args: argparse.Namespace, depth: int, device: jax.Device) -> int:
    """Returns the cycles of the whole step of a model with `depth` layers."""
    config = BertConfig(num_hidden_layers=depth, **SIZES)
    model = FlaxBertForPreTraining(config, dtype=jnp.bfloat16, _do_init=False)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(1e-4, weight_decay=0.01, eps=1e-6)
    )

    def loss_fn(params, batch, key):
        output = model(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            token_type_ids=batch["token_type_ids"],
            params=params,
            dropout_rng=key,
            train=True,
        )
        losses = optax.softmax_cross_entropy_with_integer_labels(
            output.prediction_logits.astype(jnp.float32), jnp.maximum(batch["labels"], 0)
        )
        masked = batch["labels"] >= 0
        mlm = jnp.sum(losses * masked) / (jnp.sum(masked) + 1e-5)
        nsp = optax.softmax_cross_entropy_with_integer_labels(
            output.seq_relationship_logits.astype(jnp.float32), batch["next_sentence_labels"]
        )
        return mlm + jnp.mean(nsp)

    def train_step(params, moments, batch, step):
        key = jax.random.fold_in(jax.random.key(0), step)
        loss, gradients = jax.value_and_grad(loss_fn)(params, batch, key)
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments, loss

    def on_device(tree):
        place = SingleDeviceSharding(device)
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place), tree)

    params = on_device(
        jax.eval_shape(lambda: model.init_weights(jax.random.key(0), (1, args.length)))
    )
    moments = on_device(jax.eval_shape(optimizer.init, params))
    tokens = jax.ShapeDtypeStruct((args.batch_size, args.length), jnp.int32)
    batch = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids", "labels"), tokens)
    batch["next_sentence_labels"] = jax.ShapeDtypeStruct((args.batch_size,), jnp.int32)
    started = time.monotonic()
    step = jax.jit(train_step, donate_argnums=(0, 1))
    compiled = step.lower(
        params, moments, on_device(batch), on_device(jax.ShapeDtypeStruct((), jnp.int32))
    ).compile()
    seconds = time.monotonic() - started
    cycles = hlo.total_cycles(hlo.read_operations(compiled.as_text()))
    print(f"{depth} layers: {cycles / 1e6:.2f} M cycles, compiled in {seconds:.0f} s", flush=True)
    return cycles


if __name__ == "__main__":
    main()
