"""Pre-trains the families of configs/comparison.py and compares their fine-tuning scores.

    python benchmarks/families.py --corpus='BOOKS/*.jsonl.gz' --data=DATA --workdir=DIR \\
        [--tasks=mrpc:3:64,stsb:3:64,sst2:1:64,squad:1:192] [--output=TABLE.md]

All models are pre-trained with the same number of analytic FLOPs on the same tokens, and fine-tuned
with the same rows, rates and seeds. The scores are taken after the last step; the table has the
best median over the seeds. Its last row is `bert` with random weights.

An entry of --tasks is TASK:EPOCHS:LENGTH; the tasks are those of against_scratch.py. Runs that are
already finished are not repeated, and the others continue.
"""

import argparse
import json
import sys
from pathlib import Path

from against_scratch import SIDES, best_setting, prepare, run, run_command, sweep_parser

from bert_jax.tasks.glue import SPECS

# The teacher comes before its student.
MODELS = ("bert", "roberta", "spanbert", "albert", "electra", "distilbert")
VOCAB_SIZE = 8192
_, SCRATCH = SIDES


def main() -> None:
    parser = sweep_parser(__doc__)
    parser.add_argument("--corpus", required=True, help="globs of text files")
    parser.add_argument("--tasks", default="mrpc:3:64,stsb:3:64,sst2:1:64,squad:1:192")
    parser.set_defaults(learning_rates="3e-4")
    args = parser.parse_args()
    pretrain(args)
    rows = {name: [masked_lm(args.workdir / name)] for name in MODELS} | {SCRATCH: [""]}
    titles = ["masked LM, nats (unigrams)"]
    for task, epochs, length in (entry.split(":") for entry in args.tasks.split(",")):
        source = prepare(args, task)
        for name, cells in rows.items():
            values = {
                "model": args.workdir / (MODELS[0] if name == SCRATCH else name),
                "workdir": args.workdir / "tasks" / name.replace(" ", "_"),
                "max_seq_length": length,
            }
            side = SCRATCH if name == SCRATCH else "pre-trained"
            these = argparse.Namespace(**vars(args) | values)
            sweep = run(these, task, float(epochs), source, side)
            cells.append(best_setting(sweep))
        titles.append(f"{SPECS[task].folder if task in SPECS else task}, {sweep['metric']}")
    lines = [f"| model | {' | '.join(titles)} |", "|---" * (1 + len(titles)) + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.output:
        args.output.write_text(text)


def pretrain(args: argparse.Namespace) -> None:
    store = args.workdir / "store"
    command = [sys.executable, "-m", "bert_jax.prepare", f"--input={args.corpus}"]
    command += [f"--vocab_size={VOCAB_SIZE}", "--max_sentence_tokens=0", f"--output={store}"]
    run_command(command)
    for name in MODELS:
        command = [sys.executable, "-m", "bert_jax.main"]
        command += [f"--config=configs/comparison.py:{name}", f"--workdir={args.workdir / name}"]
        command += [f"--config.data.store={store}", f"--config.data.input={args.corpus}"]
        if name == "distilbert":
            command.append(f"--config.objective.teacher={args.workdir / 'bert'}")
        run_command(command)


def masked_lm(workdir: Path) -> str:
    """Returns the held-out loss of a run (of ELECTRA's generator) beside its baseline."""
    results = json.loads((workdir / "results.json").read_text())
    return f"{results['mlm_loss']:.3f} ({results['unigram_mlm_loss']:.3f})"


if __name__ == "__main__":
    main()
