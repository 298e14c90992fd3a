"""Eight devices train each family like one device.

Run as a program, with eight simulated devices, this file prints the losses of a family with
microbatches.
"""

import importlib
import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from bert_jax.benchmark import synthetic_batches
from bert_jax.config import stage
from bert_jax.pretraining.build import make_trainer
from tests import runs

# Modules of configs/; test_parallel.py and test_multihost.py test BERT.
FAMILIES = (
    *("spanbert", "retromae", "distilbert", "roberta", "electra", "albert", "flaubert", "bart"),
    *("modernbert", "nomic_bert", "gte", "eurobert", "esm", "diffusion"),
)
STEPS = 4
SMALL = {
    "dtype": "float32",
    "model.vocab_size": 98,
    "model.hidden_size": 24,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 4,
    "model.intermediate_size": 40,
    "model.hidden_dropout_prob": 0.1,
    "train.num_steps": 40,
    "train.batch_size": 16,
    "schedule.peak_learning_rate": 1e-2,
    "schedule.warmup_steps": 2.0,
    "train.gradient_accumulation_steps": 2,
}
MESHES = {
    "one": {},
    "fsdp_tp": {"sharding": "fsdp_tp", "mesh.data": 2, "mesh.fsdp": 2, "mesh.model": 2},
}


def losses(family: str, mesh: str) -> list[float]:
    config = importlib.import_module(f"configs.{family}").get_config("tiny")
    with config.unlocked():
        config.update_from_flattened_dict(SMALL | MESHES[mesh])
        if family == "albert":
            config.model.embedding_size = 16
        if family == "bart":
            config.model.num_decoder_layers = 3
        if family == "modernbert":
            # The second layer is local.
            config.model.global_every = 2
        if family == "eurobert":
            # tp shards the four heads of queries, not the one of keys and values.
            config.model.num_key_value_heads = 1
        if family == "electra":
            # With half of this width, the generator has two heads, which tp shards.
            config.model.hidden_size = 256
            config.model.generator_size = 0.5
            config.schedule.peak_learning_rate = 1e-3
        config.train.stages = (stage(fraction=1.0, max_seq_length=16, max_predictions_per_seq=4),)
    trainer = make_trainer(config, jax.devices()[:1] if mesh == "one" else None)
    (first, *_) = trainer.stages
    batches = trainer.put(synthetic_batches(trainer, first, first.batch_size))
    # Without a teacher in the config, its weights would be zeros.
    rng = np.random.default_rng(0)
    frozen = jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(x.dtype), trainer.frozen)
    state, found = trainer.init_state(), []
    for _, batch in zip(range(STEPS), batches, strict=False):
        state, metrics = trainer.compiled_train_step(state, batch, frozen)
        found.append(float(metrics["loss"]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_losses_do_not_depend_on_the_devices(family):
    done = subprocess.run(
        [sys.executable, "-m", "tests.parallel.test_families", family],
        env=runs.environment(devices=8),
        cwd=runs.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    one = found.pop("one")
    assert one[-1] < one[0] - 0.05
    for mesh, eight in found.items():
        np.testing.assert_allclose(eight[0], one[0], rtol=2e-6, err_msg=mesh)
        np.testing.assert_allclose(eight, one, rtol=1e-4, err_msg=mesh)


if __name__ == "__main__":
    assert len(jax.devices()) == 8
    print(json.dumps({mesh: losses(sys.argv[1], mesh) for mesh in MESHES}))
