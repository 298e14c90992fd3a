"""Scores a run on held-out or other text and compares it with baselines.

    python -m bert_jax.evaluate --model=DIR [--step=N] [--data=GLOB] [--output=FILE.json]
    python -m bert_jax.evaluate --model=DIR --sts=FILE [--pooling=cls] [--output=FILE.json]
    python -m bert_jax.evaluate --model=DIR --retrieval=FOLDER [--output=FILE.json]

DIR is the work directory of a run or, with --data, any model that `predict` can load. For a
fine-tuned model, --data is a labeled file in the format of its validation split. --sts scores
the sentence embeddings of any model on pairs with a similarity, such as STS-B, and --retrieval on
queries and the documents that are relevant to them, such as BEIR's.
"""

from typing import Any

from absl import flags
from etils import epath

from bert_jax.base import files
from bert_jax.base.progress import Progress, empty_table, say, terminal
from bert_jax.config import cli
from bert_jax.config.data import DATA
from bert_jax.training import workdir

# The flags that say how the text of --data is read.
_OF_TEXT = ("format", "bad_documents")
# The flags of --sts and --retrieval, and those of --retrieval alone.
_OF_EMBEDDINGS = ("pooling", "max_length")
_OF_RETRIEVAL = ("query_prompt", "document_prompt", "skip_own_id")
# The flags of a fine-tuned model.
_OF_TASKS = ("text_columns", "label_column", "null_threshold")


def define_flags() -> None:
    cli.define_model_flag("workdir", "A work directory or, with --data, any model.")
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
    flags.DEFINE_enum(
        "bad_documents",
        None,
        ["refuse", "skip"],
        "What to do with unreadable documents of --data; by default as in config.data.",
    )
    cli.define_text_columns(
        "The columns of one or two texts in a table of --data; by default as in training, or text."
    )
    flags.DEFINE_string(
        "label_column",
        "",
        "The column of the label in a table of --data; by default as in training, or label.",
    )
    flags.DEFINE_float(
        "null_threshold",
        None,
        "Threshold of 'no answer' for a model of SQuAD 2.0; by default as in training.",
    )
    flags.DEFINE_string(
        "sts",
        "",
        "Score sentence embeddings on a .tsv, .csv or .jsonl file with the columns sentence1, "
        "sentence2 and score, or on the dev file of a folder such as GLUE's STS-B.",
    )
    flags.DEFINE_string(
        "retrieval",
        "",
        "Score sentence embeddings on retrieval: a folder of BEIR with corpus.jsonl, queries.jsonl "
        "and qrels/test.tsv, or another file in qrels.",
    )
    flags.DEFINE_bool(
        "skip_own_id",
        False,
        "--retrieval: leave the document with the id of a query out of its ranking, as BEIR does "
        "for ArguAna and Quora.",
    )
    default = "by default as the directory of the model says"
    cli.define_embedding_flags("--sts, --retrieval:", "--retrieval:", default)
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
    for name in ("data", "sts", "retrieval", "output"):
        files.checked_path(args[name].value, f"--{name}")
    if not args.data:
        cli.refuse_flags((*_OF_TEXT, *_OF_TASKS), "without --data")
    if not args.retrieval:
        cli.refuse_flags(_OF_RETRIEVAL, "without --retrieval")
    if args.sts or args.retrieval:
        cli.refuse_flags(("data", "max_sequences"), "with --sts and --retrieval")
    else:
        cli.refuse_flags(_OF_EMBEDDINGS, "without --sts and --retrieval")
    if args.sts:
        cli.refuse_flags(("retrieval",), "with --sts")
    with cli.joined_hosts():
        if args.sts or args.retrieval:
            _write(_score_embeddings())
            return
        if args.data and _is_fine_tuned(args.model):
            cli.refuse_flags((*_OF_TEXT, "max_sequences"), "on the score of a fine-tuned model")
            from bert_jax.commands.score_file import score_file
            from bert_jax.finetuning.summary import print_classes
            from bert_jax.tasks.scores import score_text
            from bert_jax.training.metrics import CLASSES

            own = {name: args[name].value for name in _OF_TASKS}
            results = score_file(args.model, args.data, args.step, **own)
            for name, value in results.items():
                if name != CLASSES:
                    is_count = isinstance(value, int)
                    print(f"{name}: {value:,}" if is_count else f"{name}: {score_text(value)}")
            print_classes(results[CLASSES])
            _write(results)
            return
        cli.refuse_flags(_OF_TASKS, "on a model that is not fine-tuned")
        from bert_jax.commands.evaluate import as_workdir, evaluate_workdir
        from bert_jax.pretraining.build import make_objective
        from bert_jax.pretraining.summary import results_table, source_table
        from bert_jax.training.metrics import BY_SOURCE

        with as_workdir(args.model, args.step) as directory:
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


def _is_fine_tuned(model: str) -> bool:
    from bert_jax.interop.formats import read
    from bert_jax.interop.native import is_native

    path = epath.Path(model)
    if workdir.holds_finetuning(path):
        return True
    is_workdir = is_native(path) or (path / workdir.CORPUS).exists()
    return not is_workdir and bool(read(path).head)


def _score_embeddings() -> dict[str, Any]:
    """Scores sentence embeddings on --sts or --retrieval, and prints a table."""
    from bert_jax.inference import embeddings
    from bert_jax.inference.finetuned import load_bert
    from bert_jax.tasks import retrieval
    from bert_jax.tasks.retrieval import read_pairs
    from bert_jax.tasks.scores import score_text

    args = flags.FLAGS
    # The data are read first, because a model takes longer.
    if args.sts:
        data, score, unit = read_pairs(args.sts, "--sts"), embeddings.score_pairs, "sentences"
        number, prefix, baseline = 2 * len(data[0]), embeddings.BASELINE_PREFIX, "common tokens"
    else:
        data = retrieval.read_retrieval(args.retrieval, "--retrieval", args.skip_own_id)
        if data.num_left_out:
            say(f"{data.num_left_out:,} queries without a relevant document are left out")
        score, unit = embeddings.score_retrieval, "texts"
        number, prefix = len(data.queries) + len(data.distinct()[0]), retrieval.BASELINE_PREFIX
        baseline = "BM25"
    bert = load_bert(args.model, args.step)
    embedding = bert.embedding_with(args.pooling, None, args.max_length)
    embedding = embedding.with_prompts(query=args.query_prompt, document=args.document_prompt)
    with Progress("evaluate", number, unit) as progress:
        results = score(bert, data, embedding, progress.advance)
    used = {name: text for name, text in results.items() if name.endswith("prompt") and text}
    prompts = [f"{name} {text!r}".replace("_", " ") for name, text in used.items()]
    how = ", ".join([embedding.pooling, embedding.similarity, *(prompts or ["no prompt"])])
    title = f"Embeddings ({how}) on {args.sts or args.retrieval}"
    table = empty_table(title, "", "this model", baseline)
    for name, value in results.items():
        if f"{prefix}{name}" in results:
            table.add_row(name, score_text(value), score_text(results[prefix + name]))
        elif name.startswith("num_"):
            table.add_row(name.removeprefix("num_").replace("_", " "), f"{value:,}", "")
    terminal().print(table)
    return results


def _write(results: dict[str, Any]) -> None:
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
