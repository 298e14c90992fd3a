"""Scores a run on held-out or other text and compares it with baselines.

    python -m bert_jax.evaluate --workdir=DIR [--step=N] [--data=GLOB] [--output=FILE.json]
    python -m bert_jax.evaluate --workdir=MODEL --sts=FILE [--pooling=cls] [--output=FILE.json]

DIR is the work directory of a run or, with --data, any pre-trained model that `predict` can load.
For a fine-tuning run, --data is a labeled file in the format of its validation split. --sts scores
the sentence embeddings of any model on pairs with a similarity, such as STS-B.
"""

from typing import Any

from absl import flags

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import Progress, empty_table, terminal
from bert_jax.config import cli
from bert_jax.config.data import DATA
from bert_jax.training import workdir

# The flags that say how the text of --data is read.
_OF_TEXT = ("format", "language", "max_document_characters", "bad_documents")
# The flags of --sts.
_OF_STS = ("pooling", "max_length")


def define_flags() -> None:
    """Defines the flags of the command line."""
    flags.DEFINE_string("workdir", "", "Work directory, or any model with --data.")
    flags.DEFINE_string(
        "data", "", "Globs of texts, or a labeled file of the task; by default held-out documents."
    )
    flags.DEFINE_integer(
        "step",
        None,
        "Step of the checkpoint; by default the newest or, of a fine-tuning run, the best.",
    )
    flags.DEFINE_enum(
        "format", None, DATA["format"].choices[:-1], "Format of --data; by default auto."
    )
    flags.DEFINE_string(
        "language", None, "Language of the sentences of --data; by default as in config.data."
    )
    flags.DEFINE_integer(
        "max_document_characters",
        None,
        "Longer documents, such as books, are split; by default as in config.data.",
        lower_bound=0,
    )
    flags.DEFINE_enum(
        "bad_documents",
        None,
        ["refuse", "skip"],
        "What to do with unreadable documents of --data; by default as in config.data.",
    )
    flags.DEFINE_string(
        "sts",
        "",
        "Score sentence embeddings on a .tsv, .csv or .jsonl file with the columns sentence1, "
        "sentence2 and score, or on the dev file of a folder such as GLUE's STS-B.",
    )
    flags.DEFINE_enum(
        "pooling",
        None,
        ["mean", "cls"],
        "--sts: the mean over all tokens or the state of [CLS]; by default as the directory "
        "of the model says, or mean.",
    )
    flags.DEFINE_integer(
        "max_length",
        None,
        "--sts: number of tokens at which sentences are cut; by default as the directory "
        "of the model says, or the longest it was trained with.",
    )
    flags.DEFINE_string("output", "", "Also write the results to this JSON file.")
    flags.DEFINE_integer(
        "max_sequences",
        None,
        "Largest number of sequences, 0 for all; by default config.eval.max_sequences.",
        lower_bound=0,
    )
    cli.define_host_flags()


def main(_) -> None:
    cli.end_on_sigterm()
    args = flags.FLAGS
    if not args.workdir:
        raise UserError("--workdir is missing: the work directory of the run to evaluate")
    for name in ("data", "sts", "output"):
        files.checked_path(args[name].value, f"--{name}")
    for name in _OF_TEXT:
        if args[name].present and not args.data:
            raise UserError(f"--{name} is for the text of --data, which is missing")
    for name in _OF_STS:
        if args[name].present and not args.sts:
            raise UserError(f"--{name} is for --sts, which is missing")
    for name in ("data", "max_sequences"):
        if args[name].present and args.sts:
            raise UserError(f"--{name} is not for --sts; give one of the two")
    with cli.joined_hosts():
        if args.sts:
            _write(_score_pairs())
            return
        if args.data and workdir.holds_finetuning(args.workdir):
            for name in (*_OF_TEXT, "max_sequences"):
                if args[name].present:
                    raise UserError(f"--{name} is for pre-trained models, not for {args.workdir}")
            from bert_jax.finetuning.predictions import score_file
            from bert_jax.finetuning.summary import print_classes
            from bert_jax.training.metrics import CLASSES

            results = score_file(args.workdir, args.data, args.step)
            for name, value in results.items():
                if name != CLASSES:
                    is_score = isinstance(value, float)
                    print(f"{name}: {value:.4f}" if is_score else f"{name}: {value:,}")
            print_classes(results[CLASSES])
            _write(results)
            return
        from bert_jax.pretraining.build import make_objective
        from bert_jax.pretraining.evaluation import (
            as_workdir,
            evaluate_workdir,
            results_table,
            source_table,
        )
        from bert_jax.training.metrics import BY_SOURCE

        with as_workdir(args.workdir, args.step) as directory:
            results = evaluate_workdir(
                directory,
                args.data,
                args.max_sequences,
                args.step,
                **{name: args[name].value for name in _OF_TEXT},
            )
            metrics = make_objective(workdir.load_config(directory)).metrics
        source = args.data or "held-out documents"
        title = f"Step {results['step']:,} on {source}"
        terminal().print(results_table(title, metrics, results))
        if BY_SOURCE in results:
            terminal().print(source_table(metrics, results))
        _write(results)


def _score_pairs() -> dict[str, Any]:
    """Scores sentence embeddings on the pairs of --sts, and prints a table."""
    import jax

    from bert_jax.inference.finetuned import load_bert
    from bert_jax.inference.similarity import BASELINE_PREFIX, SCORES, read_pairs, score_pairs

    args = flags.FLAGS
    if jax.process_count() > 1:
        raise UserError("--sts runs in one process")
    pairs = read_pairs(args.sts)
    bert = load_bert(args.workdir, args.step)
    embedding = bert.embedding_with(args.pooling, None, args.max_length)
    with Progress("evaluate", 2 * len(pairs.first), "sentences") as progress:
        results = score_pairs(bert, pairs, embedding, progress.advance)
    title = (
        f"Similarity ({embedding.similarity}) of embeddings ({embedding.pooling}) on {pairs.path}"
    )
    table = empty_table(title, "", "this model", "common tokens")
    for name in SCORES:
        values = results[name], results[BASELINE_PREFIX + name]
        table.add_row(f"{name.title()} correlation", *(f"{value:.4f}" for value in values))
    table.add_row("pairs", f"{results['num_pairs']:,}", "")
    terminal().print(table)
    return results


def _write(results: dict[str, Any]) -> None:
    """Writes the results to the file of --output, if any."""
    from bert_jax.parallel import multihost

    output = flags.FLAGS.output
    if output and multihost.is_first():
        path = files.checked_path(output, "--output")
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, results)
        print(f"written to {output}")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
