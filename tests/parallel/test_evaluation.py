"""The evaluation of a run whose parameters are sharded."""

import json
import shutil
import subprocess
import sys

import numpy as np

from bert_jax.base import files
from bert_jax.pretraining.evaluation import evaluate_workdir
from tests import runs

# Evaluates a run; prints the results, and the fraction of the parameters that each device holds.
PROGRAM = """
import json, sys, jax
from bert_jax.training.trainer import Trainer

seen = []

def eval_step(trainer, params, *operands, step=Trainer.eval_step):
    sizes = [(x.addressable_shards[0].data.size, x.size) for x in jax.tree.leaves(params)]
    here, whole = map(sum, zip(*sizes))
    seen.append(here / whole)
    return step(trainer, params, *operands)

Trainer.eval_step = eval_step
from bert_jax.pretraining.evaluation import evaluate_workdir

results = evaluate_workdir(sys.argv[1])
print(json.dumps({"results": results, "fraction": max(seen)}))
"""


def test_sharded_parameters_stay_sharded(finished, tmp_path):
    """The run of the config has 16 devices; the 8 devices here hold an eighth each."""
    directory = tmp_path / "run"
    shutil.copytree(finished, directory)
    config = files.read_json(directory / "config.json")
    config |= {"sharding": "fsdp", "mesh": {"data": 1, "fsdp": 16, "model": 1}}
    files.write_json(directory / "config.json", config)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory)],
        env=runs.environment(devices=8),
        cwd=runs.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # Vectors are not divided.
    assert found["fraction"] < 0.2
    for name, value in evaluate_workdir(finished).items():
        if name != "filled_texts":
            np.testing.assert_allclose(found["results"][name], value, rtol=2e-6, err_msg=name)
