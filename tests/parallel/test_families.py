"""Eight devices, and two processes, train each family like one device.

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
from bert_jax.training.metrics import read_metrics
from tests import runs
from tests.parallel.processes import finish, free_address

# Modules of configs/; test_parallel.py and test_multihost.py test BERT.
FAMILIES = (
    *("spanbert", "retromae", "distilbert", "roberta", "electra", "albert", "flaubert", "bart"),
    "modernbert",
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


# Two processes, each with one device and half of the parameters.
TWO = {
    "model.vocab_size": 400,
    "model.hidden_size": 64,
    "model.num_hidden_layers": 1,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "sharding": "fsdp",
    "mesh.data": 1,
    "mesh.fsdp": -1,
    "data.num_processes": 1,
    "data.max_sentence_tokens": 16,
    "data.heldout_fraction": 0.2,
    "train.num_steps": 8,
    "train.batch_size": 8,
    "train.stages[0].max_seq_length": 32,
    "schedule.warmup_steps": 2.0,
    "eval.every_steps": 4,
    "eval.max_sequences": 16,
    "eval.batch_size": 8,
    "log.every_steps": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "given"),
    [("electra", {"model.embedding_size": 64}), ("bart", {"model.num_decoder_layers": 1})],
)
def test_losses_do_not_depend_on_the_processes(family, given, tmp_path):
    values = TWO | {"data.input": runs.write_speeches(tmp_path)} | given
    config = f"configs/{family}.py:tiny"
    address = free_address()
    processes = [
        runs.start(
            command(tmp_path / "two", config, values)
            + [f"--coordinator={address}", "--num_processes=2", f"--process_id={number}"]
        )
        for number in range(2)
    ]
    for status, _, err in finish(processes):
        assert status == 0, err
    runs.succeed(command(tmp_path / "one", config, values))
    two, one = (read_losses(tmp_path / name) for name in ("two", "one"))
    assert two.keys() == one.keys() and len(one["loss"]) == 8
    assert len(one["eval_denoising_loss" if family == "bart" else "eval_mlm_loss"]) == 2
    for kind, expected in one.items():
        np.testing.assert_allclose(two[kind][0], expected[0], rtol=2e-6, err_msg=kind)
        np.testing.assert_allclose(two[kind], expected, rtol=1e-4, err_msg=kind)


def read_losses(workdir) -> dict[str, list[float]]:
    found = {}
    for line in read_metrics(workdir):
        for name in line:
            if name.endswith("loss"):
                found.setdefault(name, []).append(line[name])
    return found


def command(workdir, config, values) -> list[str]:
    flags = [f"--config.{key}={value}" for key, value in values.items()]
    start = [sys.executable, "-m", "bert_jax.main", f"--config={config}"]
    return [*start, f"--workdir={workdir}", *flags]


if __name__ == "__main__":
    assert len(jax.devices()) == 8
    print(json.dumps({mesh: losses(sys.argv[1], mesh) for mesh in MESHES}))
