"""Compares our train step with that of transformers' PyTorch models on the same CPU.

    python benchmarks/against_transformers.py --config=configs/mini.py --batch_size=32 \\
        --torch_python=OTHER_VENV/bin/python

The class of transformers is the one that an export uses; config.family and the terms define it.
The two sides run alternately in separate processes, with the same shapes, optimizer and clipping,
all dropout, and float32. The speed of a machine drifts, so each turn (one run of each side) gives
one ratio; the result is the median ratio.
torch and transformers may be installed in another virtual environment.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ml_collections import ConfigDict

from bert_jax.config import objective_terms
from bert_jax.interop.families import load_family
from bert_jax.interop.model_keys import write_family_keys

BENCHMARKS = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config", required=True, help="a config file that gives the size of the model"
    )
    parser.add_argument(
        "--torch_python", default=sys.executable, help="a Python that has torch and transformers"
    )
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument(
        "--steps", type=int, default=10, help="timed steps of each side in each turn"
    )
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()

    config = load_config(args.config)
    stage = config.train.stages[args.stage - 1]
    ratios = []
    for turn in range(args.turns):
        ours = run_ours(args)
        theirs = run_transformers(args, config, stage)
        ratios.append(ours["sequences_per_second"] / theirs["sequences_per_second"])
        print(
            f"turn {turn + 1}: bert_jax {ours['sequences_per_second']:.2f} sequences/s, "
            f"transformers {theirs['sequences_per_second']:.2f} ({theirs['versions']}, "
            f"{theirs['attention']} attention), ratio {ratios[-1]:.2f}",
            flush=True,
        )
    shape = f"{args.batch_size} x {stage['max_seq_length']}"
    print(f"{args.config}, {shape}: median ratio {statistics.median(ratios):.2f}")


def load_config(path: str) -> ConfigDict:
    """Returns the config of `FILE` or `FILE:ARGUMENT`."""
    path, _, argument = path.partition(":")
    spec = importlib.util.spec_from_file_location("config_file", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(argument) if argument else module.get_config()


def run_ours(args: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "ours.json"
        command = [sys.executable, "-m", "bert_jax.benchmark", f"--config={args.config}"]
        command += [f"--stage={args.stage}", f"--steps={args.steps}", f"--output={output}"]
        command += [f"--config.train.batch_size={args.batch_size}", "--config.dtype=float32"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(output.read_text())


def run_transformers(args: argparse.Namespace, config: ConfigDict, stage: dict) -> dict:
    family = load_family(config.family)
    chosen = family.pretraining_class(config.model.causal, objective_terms(config))
    keys = write_family_keys(config.model, family, args.config)
    keys = {"model_type": family.model_types[0], **keys}
    command = [args.torch_python, str(BENCHMARKS / "transformers_step.py")]
    command += [f"--model_class={chosen.name}", f"--model={json.dumps(keys)}"]
    command += [f"--batch_size={args.batch_size}", f"--length={stage['max_seq_length']}"]
    command += [f"--predictions={stage['max_predictions_per_seq']}", f"--steps={args.steps}"]
    command += [f"--threads={os.cpu_count()}"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


if __name__ == "__main__":
    main()
