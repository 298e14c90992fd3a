"""Compares fine-tuning with transformers' PyTorch BERT, or with fine-tuning from random weights.

    python benchmarks/finetuning.py --against=transformers --model=HF_DIRECTORY --data=DATA \\
        --tasks=mrpc:2,stsb:1,cola:1 --workdir=DIR --torch_python=OTHER_VENV/bin/python
    python benchmarks/finetuning.py --against=scratch --model=PATH --data=DATA \\
        --tasks=sst2:1,squad:2 --learning_rates=2e-4,5e-4 --seeds=3 --workdir=DIR

Our side runs `python -m bert_jax.finetune --sweep` in float32 for each entry TASK:EPOCHS of
--tasks. The score is taken after the last step. TASK is a GLUE task (read from DATA/glue/MRPC,
...), squad, ner or multiple_choice (read from DATA/squad, ...). SQuAD and multiple choice need only
the dev file: every fourth article or question is held out for scoring, and the model trains on the
rest. Runs that are already finished in --workdir are not repeated.

--against=scratch: the other side has config.from_scratch, and the same shape, vocabulary, rows,
learning rates and seeds. The table shows each side at the learning rate with the best median over
the seeds.

--against=transformers: GLUE only, with one learning rate. The other side fine-tunes on the rows
that bert_jax's readers return. Both use AdamW with bias correction and a decay of 0.01 (none on
biases and LayerNorm), gradients clipped at 1, and a linear schedule with a tenth of the steps as
warm-up. Each side uses its own random numbers for heads, dropout and the order of rows. If the
implementations agree, the scores are two samples of one distribution. The table has the medians
and the p-value of a Mann-Whitney test: the probability that the ranks of the scores lie this far
apart by chance.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HELD_OUT = 4


def main() -> None:
    if sys.argv[1:2] == ["theirs"]:
        train_transformers(json.loads(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", required=True, choices=("transformers", "scratch"))
    parser.add_argument("--model", required=True, help="as config.init_from")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--tasks", required=True, help="TASK:EPOCHS, ...")
    parser.add_argument("--learning_rates", default="2e-4")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--workdir", required=True, type=Path)
    parser.add_argument("--output", type=Path, help="the table, in Markdown")
    parser.add_argument(
        "--torch_python", default=sys.executable, help="a Python that has torch and transformers"
    )
    parser.add_argument("overrides", nargs="*", help="further flags of bert_jax.finetune, after --")
    args = parser.parse_args()
    args.workdir.mkdir(parents=True, exist_ok=True)
    tasks = [
        (task, float(epochs)) for task, epochs in (t.split(":") for t in args.tasks.split(","))
    ]
    table = compare_scratch if args.against == "scratch" else compare_transformers
    text = "\n".join(table(args, tasks)) + "\n"
    print(text)
    if args.output:
        args.output.write_text(text)


def compare_scratch(args: argparse.Namespace, tasks: list[tuple[str, float]]) -> list[str]:
    lines = ["| task | epochs | metric | pre-trained | from scratch |", "|---" * 5 + "|"]
    for task, epochs in tasks:
        sweeps = [run(args, task, epochs, from_scratch) for from_scratch in (False, True)]
        cells = [f"{task} | {epochs:g} | {sweeps[0]['metric']}"]
        for best in (sweep["settings"][0] for sweep in sweeps):
            spread = f"{best['lowest']:.4f} to {best['highest']:.4f}"
            cells.append(f"**{best['median']:.4f}** ({spread}; rate {best['learning_rate']:g})")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def compare_transformers(args: argparse.Namespace, tasks: list[tuple[str, float]]) -> list[str]:
    from scipy import stats

    from bert_jax.config import finetune_config
    from bert_jax.interop import formats
    from bert_jax.tasks import make_task

    tokenizer = formats.read(args.model).tokenizer
    lines = [
        "| task | epochs | metric | bert_jax, median of "
        f"{args.seeds} (lowest to highest) | transformers, the same | p |",
        "|---" * 6 + "|",
    ]
    for task, epochs in tasks:
        config = finetune_config(task)
        config.data.max_seq_length = args.max_seq_length
        data = make_task(config, source_of(args, task), tokenizer)
        outputs = run_transformers(args, data, epochs)
        theirs = [data.score(data.rows("validation"), {"logits": logits}) for logits in outputs]
        ours = [results["validation"] for results in run(args, task, epochs, False)["runs"]]
        for metric in theirs[0]:
            sides = [[scores[metric] for scores in side] for side in (ours, theirs)]
            p = stats.mannwhitneyu(*sides).pvalue
            cells = [f"{statistics.median(s):.4f} ({min(s):.4f} to {max(s):.4f})" for s in sides]
            lines.append(f"| {task} | {epochs:g} | {metric} | {' | '.join(cells)} | {p:.2f} |")
    return lines


def run_transformers(args: argparse.Namespace, data, epochs: float) -> list[np.ndarray]:
    """Fine-tunes with every seed; returns the logits of the validation rows."""
    folder = args.workdir / f"theirs_{data.name}"
    folder.mkdir(exist_ok=True)
    for split in ("train", "validation"):
        with open(folder / f"{split}.jsonl", "w", encoding="utf-8") as file:
            for example in data.examples(data.sources[split], split, data.new_bad_rows()):
                ((text, text_b),) = example.texts
                row = {"text": text, "text_b": text_b, "label": example.label}
                file.write(json.dumps(row) + "\n")
    outputs = [folder / f"outputs_{seed}.npy" for seed in range(args.seeds)]
    for seed, output in enumerate(outputs):
        settings = {
            "model": args.model,
            "data": str(folder),
            "output": str(output),
            "seed": seed,
            "num_labels": len(data.labels) or 1,
            "epochs": epochs,
            "batch_size": args.batch_size,
            "learning_rate": float(args.learning_rates),
            "max_seq_length": args.max_seq_length,
        }
        if not output.exists():
            run_command([args.torch_python, __file__, "theirs", json.dumps(settings)])
    return [np.load(output) for output in outputs]


def source_of(args: argparse.Namespace, task: str) -> str:
    """Returns a task's config.data.input; splits the dev file of SQuAD and multiple choice."""
    from bert_jax.tasks.glue import SPECS

    if task in SPECS:
        return str(args.data / "glue" / SPECS[task].folder)
    if task == "ner":
        (folder,) = {file.parent for file in (args.data / "ner").rglob("train.*")}
        return str(folder)
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


def run(args: argparse.Namespace, task: str, epochs: float, from_scratch: bool) -> dict:
    """Runs or reads a sweep of bert_jax; returns its sweep.json."""
    from bert_jax.tasks.glue import SPECS

    config = f"glue.py:{task}" if task in SPECS else f"{task}.py"
    workdir = args.workdir / f"{task}_{'from_scratch' if from_scratch else 'pre-trained'}"
    settings = {
        "config": f"configs/finetune/{config}",
        "config.data.input": source_of(args, task),
        "config.data.max_seq_length": args.max_seq_length,
        "config.data.length_multiple": 16,
        "config.init_from": args.model,
        "config.from_scratch": from_scratch,
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


def train_transformers(settings: dict) -> None:
    """Fine-tunes and writes the logits of the validation rows. This process has no bert_jax."""
    import torch
    import transformers

    started = time.perf_counter()
    transformers.set_seed(settings["seed"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["model"])
    model = transformers.BertForSequenceClassification.from_pretrained(
        settings["model"], num_labels=settings["num_labels"]
    )
    rows, validation = (
        read(f"{settings['data']}/{split}.jsonl") for split in ("train", "validation")
    )
    batch_size = settings["batch_size"]
    num_steps = int(len(rows) * settings["epochs"] / batch_size)
    decayed, others = [], []
    for name, parameter in model.named_parameters():
        is_other = name.endswith("bias") or "LayerNorm" in name
        (others if is_other else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": 0.01},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings["learning_rate"], eps=1e-6)
    warmup = int(0.1 * num_steps)
    # As in google-research/bert, the decay counts from step 0, so the rate drops after the warm-up.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: step / warmup if step < warmup else 1 - step / num_steps
    )

    def encode(chosen):
        pairs = [row["text_b"] for row in chosen]
        return tokenizer(
            [row["text"] for row in chosen],
            pairs if pairs[0] is not None else None,
            padding=True,
            truncation="longest_first",
            max_length=settings["max_seq_length"],
            return_tensors="pt",
        )

    model.train()
    label_type = torch.long if settings["num_labels"] > 1 else torch.float
    order: list[int] = []
    generator = random.Random(settings["seed"])
    for step in range(num_steps):
        while len(order) < batch_size:
            # As in bert_jax, a batch may hold the last rows of an epoch and the first of the next.
            order += generator.sample(range(len(rows)), len(rows))
        chosen, order = [rows[i] for i in order[:batch_size]], order[batch_size:]
        labels = torch.tensor([row["label"] for row in chosen], dtype=label_type)
        loss = model(**encode(chosen), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % 50 == 0:
            seconds = time.perf_counter() - started
            print(f"step {step + 1} of {num_steps}: loss {loss.item():.3f}, {seconds:.0f} s")

    model.eval()
    logits = []
    with torch.inference_mode():
        for first in range(0, len(validation), 64):
            logits.append(model(**encode(validation[first : first + 64])).logits.numpy())
    np.save(settings["output"], np.concatenate(logits))


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


if __name__ == "__main__":
    main()
