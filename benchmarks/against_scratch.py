"""Compares fine-tuning from pre-trained weights with fine-tuning from random ones.

    python benchmarks/against_scratch.py --model=PATH --data=DATA --tasks=sst2:1,mrpc:3 \\
        --learning_rates=2e-4,5e-4 --seeds=3 --workdir=DIR [--output=TABLE.md]

Both sides have the same shape, vocabulary, rows, learning rates and seeds, and run
`python -m bert_jax.finetune --sweep`, one side with `config.from_scratch`. The score is taken after
the last step. The table shows each side at the learning rate with the best median over the seeds.

An entry of --tasks is TASK:EPOCHS. TASK is a GLUE task (read from DATA/glue/MRPC, ...), squad,
ner or multiple_choice (read from DATA/squad, ...). SQuAD and multiple choice need only the dev
file: every fourth article or question is held out for scoring, and the model trains on the rest.

Runs that are already finished in `--workdir` are not repeated.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from bert_jax.tasks.glue import SPECS

SIDES = {"pre-trained": False, "from scratch": True}
HELD_OUT = 4


def main() -> None:
    parser = sweep_parser(__doc__)
    parser.add_argument(
        "--model", required=True, help="the pre-trained model, as in config.init_from"
    )
    parser.add_argument("--tasks", required=True, help="TASK:EPOCHS, ...")
    parser.add_argument("--max_seq_length", type=int, default=128)
    args = parser.parse_args()
    lines = ["| task | epochs | metric | pre-trained | from scratch |", "|---" * 5 + "|"]
    for task, epochs in (entry.split(":") for entry in args.tasks.split(",")):
        source = prepare(args, task)
        cells = []
        for side in SIDES:
            sweep = run(args, task, float(epochs), source, side)
            cells.append(best_setting(sweep))
        name = SPECS[task].folder if task in SPECS else task
        lines.append(f"| {name} | {epochs} | {sweep['metric']} | {' | '.join(cells)} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if args.output:
        args.output.write_text(text)


def sweep_parser(description: str) -> argparse.ArgumentParser:
    """Returns a parser of the flags that `prepare` and `run` need."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--learning_rates", default="2e-4")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--workdir", required=True, type=Path)
    parser.add_argument("--output", type=Path, help="the table, in Markdown")
    parser.add_argument("overrides", nargs="*", help="further flags of bert_jax.finetune, after --")
    return parser


def prepare(args: argparse.Namespace, task: str) -> str:
    """Returns a task's config.data.input; splits the dev file of SQuAD and multiple choice."""
    if task in SPECS:
        return str(args.data / "glue" / SPECS[task].folder)
    if task == "ner":
        (folder,) = {file.parent for file in (args.data / "ner").rglob("train.*")}
        return str(folder)
    args.workdir.mkdir(parents=True, exist_ok=True)
    if task == "squad":
        (file,) = (args.data / "squad").rglob("dev-v1.1.json")
        squad = json.loads(file.read_text())
        parts = divided(squad["data"])
        texts = [json.dumps({"version": squad["version"], "data": part}) for part in parts]
    else:
        (file,) = (args.data / "multiple_choice").rglob("dev_rand_split.jsonl")
        texts = ["".join(part) for part in divided(file.read_text().splitlines(keepends=True))]
    paths = [args.workdir / f"{task}_{part}{file.suffix}" for part in ("train", "validation")]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return f"train={paths[0]},validation={paths[1]}"


def divided(entries: list) -> tuple[list, list]:
    held_out = entries[HELD_OUT - 1 :: HELD_OUT]
    return [e for i, e in enumerate(entries) if i % HELD_OUT != HELD_OUT - 1], held_out


def run(args: argparse.Namespace, task: str, epochs: float, source: str, side: str) -> dict:
    config = f"glue.py:{task}" if task in SPECS else f"{task}.py"
    workdir = args.workdir / f"{task}_{side.replace(' ', '_')}"
    settings = {
        "config": f"configs/finetune/{config}",
        "config.data.input": source,
        "config.data.max_seq_length": args.max_seq_length,
        "config.data.length_multiple": 16,
        "config.init_from": args.model,
        "config.from_scratch": SIDES[side],
        "config.dtype": "float32",
        "config.optimizer.bias_correction": True,
        "config.train.num_epochs": epochs,
        "config.eval.every_steps": 1_000_000,
        "config.checkpoint.every_steps": 1_000_000,
        "config.sweep.learning_rates": tuple(map(float, args.learning_rates.split(","))),
        "config.sweep.batch_sizes": (args.batch_size,),
        "config.sweep.seeds": tuple(range(args.seeds)),
        "workdir": workdir,
    }
    command = [sys.executable, "-m", "bert_jax.finetune", "--sweep"]
    command += [f"--{key}={value}" for key, value in settings.items()]
    run_command([*command, *args.overrides])
    return json.loads((workdir / "sweep.json").read_text())


def run_command(command: list[str]) -> None:
    """Runs a command. If it fails, exits with its status; the command has printed the reason."""
    if status := subprocess.run(command).returncode:
        sys.exit(status)


def best_setting(sweep: dict) -> str:
    best = sweep["settings"][0]
    spread = f"{best['lowest']:.4f} to {best['highest']:.4f}"
    return f"**{best['median']:.4f}** ({spread}; rate {best['learning_rate']:g})"


if __name__ == "__main__":
    main()
