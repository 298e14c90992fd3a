"""Compares dev scores of fine-tuning with transformers' PyTorch BERT.

    python benchmarks/finetune_against_transformers.py --model=HF_DIRECTORY --data=DATA \\
        --workdir=DIR --torch_python=OTHER_VENV/bin/python [--output=TABLE.md]

Each side fine-tunes each task with `--seeds` seeds: bert_jax with `python -m bert_jax.finetune
--sweep`, transformers with transformers_finetune.py, on the rows that bert_jax's readers return.
The score is taken after the last step. Both use float32, AdamW with bias correction and a decay
of 0.01 (none on biases and LayerNorm), gradients clipped at 1, and a linear schedule with a tenth
of the steps as warm-up.

The tasks are those of GLUE, read from DATA/glue/MRPC, ... Each side uses its own random numbers for
heads, dropout and the order of rows. If the implementations agree, the scores are two samples of
one distribution. The table has the medians and the p-value of a Mann-Whitney test: the probability
that the ranks of the scores lie this far apart by chance.

Runs that are already finished in `--workdir` are not repeated.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import numpy as np
from against_scratch import prepare, run, run_command, sweep_parser
from scipy import stats

from bert_jax.interop import formats
from bert_jax.tasks.glue import SPECS, GlueTask

BENCHMARKS = Path(__file__).parent


def main() -> None:
    parser = sweep_parser(__doc__)
    parser.add_argument("--model", required=True, help="a Hugging Face directory")
    parser.add_argument(
        "--torch_python", default=sys.executable, help="a Python that has torch and transformers"
    )
    parser.add_argument("--tasks", default="mrpc:2,stsb:1,cola:1", help="TASK:EPOCHS, ...")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.set_defaults(seeds=5)
    args = parser.parse_args()
    epochs = {task: float(count) for task, count in (t.split(":") for t in args.tasks.split(","))}
    for task in epochs:
        run_theirs(args, task, epochs[task])
    text = report(args, epochs)
    print(text)
    if args.output:
        args.output.write_text(text)


def run_theirs(args: argparse.Namespace, task: str, epochs: float) -> None:
    folder = args.workdir / f"theirs_{task}"
    folder.mkdir(parents=True, exist_ok=True)
    data = make_task(args, task)
    for split in ("train", "validation"):
        with open(folder / f"{split}.jsonl", "w", encoding="utf-8") as file:
            for example in data.examples(split):
                ((text, text_b),) = example.texts
                row = {"text": text, "text_b": text_b, "label": example.label}
                file.write(json.dumps(row) + "\n")
    for seed in range(args.seeds):
        output = folder / f"outputs_{seed}.npy"
        if output.exists():
            continue
        command = [args.torch_python, str(BENCHMARKS / "transformers_finetune.py")]
        command += [f"--model={args.model}", f"--data={folder}", f"--output={output}"]
        command += [f"--seed={seed}", f"--num_labels={len(data.labels) or 1}"]
        command += [f"--epochs={epochs}", f"--learning_rate={args.learning_rates}"]
        command += [f"--{name}={getattr(args, name)}" for name in ("batch_size", "max_seq_length")]
        run_command(command)


def make_task(args: argparse.Namespace, task: str) -> GlueTask:
    tokenizer = formats.read(args.model).tokenizer
    return GlueTask(task, prepare(args, task), tokenizer, {}, max_seq_length=args.max_seq_length)


def report(args: argparse.Namespace, epochs: dict[str, float]) -> str:
    lines = [
        "| task | epochs | metric | bert_jax, median of "
        f"{args.seeds} (lowest to highest) | transformers, the same | p |",
        "|---|---|---|---|---|---|",
    ]
    for task in epochs:
        data = make_task(args, task)
        sweep = run(args, task, epochs[task], prepare(args, task), "pre-trained")
        ours = [results["validation"] for results in sweep["runs"]]
        theirs = []
        for seed in range(args.seeds):
            logits = np.load(args.workdir / f"theirs_{task}" / f"outputs_{seed}.npy")
            theirs.append(data.score("validation", {"logits": logits}))
        for metric in theirs[0]:
            sides = [[scores[metric] for scores in side] for side in (ours, theirs)]
            p = stats.mannwhitneyu(*sides).pvalue
            cells = [f"{statistics.median(s):.4f} ({min(s):.4f} to {max(s):.4f})" for s in sides]
            name = f"{SPECS[task].folder} | {epochs[task]:g} | {metric}"
            lines.append(f"| {name} | {' | '.join(cells)} | {p:.2f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
