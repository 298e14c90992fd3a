"""The evaluation of a run whose parameters are sharded.

Run as a program, with eight simulated devices, this file evaluates a run; it prints the results,
and the fraction of the parameters that each device holds.
"""

import json
import shutil
import sys

import jax
import numpy as np

from bert_jax.base import files
from bert_jax.commands.evaluate import evaluate_workdir
from bert_jax.training.trainer import Trainer
from tests import runs
from tests.parallel.processes import finish


def main(directory):
    seen = []

    def eval_step(trainer, params, *operands, step=Trainer.eval_step):
        leaves = jax.tree.leaves(params)
        here = sum(leaf.addressable_shards[0].data.size for leaf in leaves)
        seen.append(here / sum(leaf.size for leaf in leaves))
        return step(trainer, params, *operands)

    Trainer.eval_step = eval_step
    results = evaluate_workdir(directory)
    print(json.dumps({"results": results, "fraction": max(seen)}))


def test_sharded_parameters_stay_sharded(finished, tmp_path):
    """The run of the config has 16 devices; the 8 devices here hold an eighth each."""
    directory = tmp_path / "run"
    shutil.copytree(finished, directory)
    config = files.read_json(directory / "config.json")
    config |= {"sharding": "fsdp", "mesh": {"data": 1, "fsdp": 16, "model": 1}}
    files.write_json(directory / "config.json", config)
    program = [sys.executable, "-m", "tests.parallel.test_evaluation", str(directory)]
    ((status, out, err),) = finish([runs.start(program, devices=8)])
    assert status == 0, err
    found = json.loads(out.splitlines()[-1])
    # Vectors are not divided.
    assert found["fraction"] < 0.2
    for name, value in evaluate_workdir(finished).items():
        if name != "filled_texts":
            np.testing.assert_allclose(found["results"][name], value, rtol=2e-6, err_msg=name)


if __name__ == "__main__":
    main(sys.argv[1])
