"""Compares the speed of a train step with transformers' PyTorch models on the same CPU.

    python benchmarks/against_transformers.py --config=configs/mini.py --batch_size=32 \\
        --torch_python=OTHER_VENV/bin/python [--config.KEY=VALUE ...]

The class of transformers is the one that an export uses. ELECTRA's generator and DistilBERT's
teacher, with random weights, are parts of both steps. The two sides run alternately in separate
processes, with the same shapes, optimizer and clipping, all dropout, and float32. The speed of a
machine drifts, so each turn (one run of each side) gives one ratio; the result is the median ratio.
torch and transformers may be installed in another virtual environment.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict, config_flags

from bert_jax.config import command_line
from bert_jax.interop.families import load_family
from bert_jax.interop.family import Family
from bert_jax.interop.model_keys import write_family_keys
from bert_jax.models.bert_config import BertConfig
from bert_jax.pretraining.build import make_trainer
from bert_jax.training.stages import Stage, resolve_stages

BENCHMARKS = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    args, args.overrides = parser.parse_known_args()

    config = read_config(args)
    stage = resolve_stages(config)[args.stage - 1]
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
    shape = f"{args.batch_size} x {stage.max_seq_length}"
    print(f"{args.config}, {shape}: median ratio {statistics.median(ratios):.2f}")


def read_config(args: argparse.Namespace) -> ConfigDict:
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values)
    command_line.parse([__file__, f"--config={args.config}", *args.overrides], values)
    return values.config


def run_ours(args: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "ours.json"
        command = [sys.executable, "-m", "bert_jax.benchmark", f"--config={args.config}"]
        command += args.overrides
        command += [f"--stage={args.stage}", f"--steps={args.steps}", f"--output={output}"]
        command += [f"--config.train.batch_size={args.batch_size}", "--config.dtype=float32"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(output.read_text())


def run_transformers(args: argparse.Namespace, config: ConfigDict, stage: Stage) -> dict:
    family = load_family(config.family)
    model_config = BertConfig(**config.model)
    chosen = family.pretraining_class(config.model.causal, config.objective.terms)
    command = [args.torch_python, str(BENCHMARKS / "transformers_step.py")]
    command += [f"--model_class={chosen.name}", f"--model={keys_json(model_config, family)}"]
    if model_config.generator_size:
        command.append(f"--generator={keys_json(model_config.generator, family)}")
    if teacher := make_trainer(config).objective.teacher:
        command.append(f"--teacher={keys_json(teacher, family)}")
    command += [f"--batch_size={args.batch_size}", f"--length={stage.max_seq_length}"]
    command += [f"--predictions={stage.max_predictions_per_seq}", f"--steps={args.steps}"]
    command += [f"--threads={os.cpu_count()}"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def keys_json(model_config: BertConfig, family: Family) -> str:
    """Returns the contents of the config.json of transformers."""
    keys = write_family_keys(dataclasses.asdict(model_config), family, "the config")
    return json.dumps({"model_type": family.model_types[0]} | keys)


if __name__ == "__main__":
    main()
