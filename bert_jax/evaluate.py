"""Scores a run on held-out or other text and compares it with baselines.

python -m bert_jax.evaluate --workdir=DIR [--data=GLOB] [--output=FILE.json]
"""

from absl import flags
from rich.console import Console

from bert_jax import cli, files, workdir
from bert_jax.errors import UserError


def define_flags() -> None:
    """Defines the flags of the command line."""
    flags.DEFINE_string("workdir", "", "Work directory of the run to evaluate.")
    flags.DEFINE_string("data", "", "Globs of text to score; by default the held-out documents.")
    flags.DEFINE_string("output", "", "Also write the results to this JSON file.")
    flags.DEFINE_integer(
        "max_sequences",
        None,
        "Largest number of sequences, 0 for all; by default config.eval.max_sequences.",
    )
    cli.define_host_flags()


def main(_) -> None:
    args = flags.FLAGS
    if not args.workdir:
        raise UserError("--workdir is missing: the work directory of the run to evaluate")
    for name in ("data", "output"):
        files.open_path(args[name].value, f"--{name}")
    with cli.joined_hosts():
        from bert_jax.evaluation import evaluate_workdir, results_table
        from bert_jax.parallel import multihost
        from bert_jax.pretraining import make_objective

        results = evaluate_workdir(args.workdir, args.data, args.max_sequences)
        source = args.data or "held-out documents"
        title = f"Step {results['step']:,} on {source}"
        metrics = make_objective(workdir.load_config(args.workdir)).metrics
        Console().print(results_table(title, metrics, results))
        if args.output and multihost.is_first():
            files.write_json(args.output, results)
            print(f"written to {args.output}")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
