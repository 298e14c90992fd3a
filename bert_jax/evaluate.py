"""Scores a run on held-out or other text and compares it with baselines.

    python -m bert_jax.evaluate --model=DIR [--step=N] [--data=GLOB] [--output=FILE.json]
    python -m bert_jax.evaluate --model=DIR --sts=FILE [--pooling=cls] [--output=FILE.json]
    python -m bert_jax.evaluate --model=DIR --retrieval=FOLDER [--output=FILE.json]
    python -m bert_jax.evaluate --model=RERANKER --retrieval=FOLDER [--first=DIR] [--depth=50]

DIR is the work directory of a run or, with --data, any model that `predict` can load. For a
fine-tuned model, --data is a labeled file in the format of its validation split. --sts scores
the sentence embeddings of any model on pairs with a similarity, such as STS-B, and --retrieval on
queries and the documents that are relevant to them, such as BEIR's. A reranker ranks the documents
again that --first finds, by default BM25.
"""

from typing import Any

from absl import flags
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import Progress, empty_table, say, terminal
from bert_jax.config import cli
from bert_jax.config.data import DATA
from bert_jax.training import workdir

# The first stage that needs no model.
BM25 = "bm25"
# The data sets of arguments in NanoBEIR. sentence-transformers scores no reranker on them.
_NOT_RERANKED = ("NanoArguAna", "NanoTouche2020")
# The flags that say how the text of --data is read.
_OF_TEXT = ("format", "bad_documents")
# The flags of --sts and --retrieval, and those of --retrieval alone.
_OF_EMBEDDINGS = ("pooling", "max_length")
_PROMPTS = ("query_prompt", "document_prompt")
_OF_RERANKERS = ("first", "depth")
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
        "Score embeddings or a reranker on retrieval: a folder of BEIR with corpus.jsonl, "
        "queries.jsonl and qrels/test.tsv, another file in qrels, or a folder of several data "
        "sets, such as NanoBEIR.",
    )
    flags.DEFINE_bool(
        "skip_own_id",
        False,
        "--retrieval: leave the document with the id of a query out of its ranking, as BEIR does "
        "for ArguAna and Quora.",
    )
    flags.DEFINE_string(
        "first",
        BM25,
        "--retrieval with a reranker: the model whose embeddings (dense, sparse or multi-vector) "
        f"find the documents to rerank, or {BM25}.",
    )
    flags.DEFINE_integer(
        "depth",
        100,
        "--retrieval with a reranker: the number of documents of a query to rerank.",
        lower_bound=1,
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
        cli.refuse_flags((*_PROMPTS, *_OF_RERANKERS, "skip_own_id"), "without --retrieval")
    if args.sts or args.retrieval:
        cli.refuse_flags(("data", "max_sequences"), "with --sts and --retrieval")
    else:
        cli.refuse_flags(_OF_EMBEDDINGS, "without --sts and --retrieval")
    if args.sts:
        cli.refuse_flags(("retrieval",), "with --sts")
    with cli.joined_hosts():
        from bert_jax.parallel import multihost

        if args.sts:
            results = _score_similarities()
        elif args.retrieval:
            results = _score_retrieval()
        elif args.data and _is_fine_tuned(args.model):
            results = _score_labeled_file()
        else:
            results = _score_text()
        if args.output and multihost.is_first():
            path = files.checked_path(args.output, "--output")
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(path, results)
            print(f"written to {args.output}")


def _score_text() -> dict[str, Any]:
    """Scores a pre-trained model on held-out or other text."""
    from bert_jax.commands.evaluate import as_workdir, evaluate_workdir
    from bert_jax.pretraining.build import make_objective
    from bert_jax.pretraining.summary import results_table, source_table
    from bert_jax.training.metrics import BY_SOURCE

    args = flags.FLAGS
    cli.refuse_flags(_OF_TASKS, "on a model that is not fine-tuned")
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
    return results


def _score_labeled_file() -> dict[str, Any]:
    """Scores a fine-tuned model on --data."""
    from bert_jax.commands.score_file import score_file
    from bert_jax.finetuning.summary import print_classes
    from bert_jax.tasks.scores import score_text
    from bert_jax.training.metrics import CLASSES

    args = flags.FLAGS
    cli.refuse_flags((*_OF_TEXT, "max_sequences"), "on the score of a fine-tuned model")
    own = {name: args[name].value for name in _OF_TASKS}
    results = score_file(args.model, args.data, args.step, **own)
    for name, value in results.items():
        if name != CLASSES:
            is_count = isinstance(value, int)
            print(f"{name}: {value:,}" if is_count else f"{name}: {score_text(value)}")
    print_classes(results[CLASSES])
    return results


def _is_fine_tuned(model: str) -> bool:
    from bert_jax.interop.formats import read
    from bert_jax.interop.native import is_native

    path = epath.Path(model)
    if workdir.holds_finetuning(path):
        return True
    is_workdir = is_native(path) or (path / workdir.CORPUS).exists()
    return not is_workdir and bool(read(path).head)


def _score_similarities() -> dict[str, Any]:
    """Scores sentence embeddings on --sts."""
    from bert_jax.inference import embeddings
    from bert_jax.inference.finetuned import load_bert
    from bert_jax.tasks.retrieval import read_pairs

    args = flags.FLAGS
    # The data are read first, because a model takes longer.
    pairs = read_pairs(args.sts, "--sts")
    bert = load_bert(args.model, args.step)
    embedding = bert.embedding_with(args.pooling, None, args.max_length)
    with Progress("evaluate", 2 * len(pairs[0]), "sentences") as progress:
        results = embeddings.score_pairs(bert, pairs, embedding, progress.advance)
    title = _title(embedding, results, args.sts)
    _print_scores(title, results, "this model", "common tokens", embeddings.BASELINE_PREFIX)
    return results


def _score_retrieval() -> dict[str, Any]:
    """Scores sentence embeddings, or a reranker after a first stage, on --retrieval."""
    from bert_jax.inference import embeddings
    from bert_jax.inference.finetuned import load_bert
    from bert_jax.tasks import retrieval
    from bert_jax.tasks.beir import read_data_sets
    from bert_jax.tasks.candidate_scores import FIRST_PREFIX

    args = flags.FLAGS
    sets = read_data_sets(args.retrieval, "--retrieval", args.skip_own_id)
    if num_left_out := sum(data.num_left_out for data in sets.values()):
        say(f"{num_left_out:,} queries without a relevant document are left out")
    bert = load_bert(args.model, args.step)
    if _is_reranker(bert):
        cli.refuse_flags((*_OF_EMBEDDINGS, *_PROMPTS), "on a reranker")
        kept = {name: data for name, data in sets.items() if name not in _NOT_RERANKED} or sets
        if left_out := sets.keys() - kept.keys():
            names = " and ".join(sorted(left_out))
            say(f"{names}: left out, because finding arguments is another task")
        found = _rerank(bert, kept)
        title = f"The first {args.depth:,} documents, reranked, on {args.retrieval}"
        columns, stage = ("reranked", args.first, FIRST_PREFIX), f"_R{args.depth}"
    else:
        cli.refuse_flags(_OF_RERANKERS, "on a model that is no reranker, with a head of one output")
        embedding = bert.embedding_with(args.pooling, None, args.max_length)
        embedding = embedding.with_prompts(query=args.query_prompt, document=args.document_prompt)
        with Progress("evaluate", _count_texts(sets), "texts") as progress:
            found = {
                name: embeddings.score_retrieval(bert, data, embedding, progress.advance)
                for name, data in sets.items()
            }
        title = _title(embedding, next(iter(found.values())), args.retrieval)
        columns, stage = ("this model", "BM25", retrieval.BASELINE_PREFIX), ""
    if "" in found:
        results = found[""]
        _print_scores(title, results, *columns)
    else:
        means = retrieval.mean_scores(found)
        _print_sets(title, found | {"mean": means}, columns[-1])
        group = "NanoBEIR" if all(name.startswith("Nano") for name in found) else "BEIR"
        results = found | {f"{group}{stage}_mean_{name}": x for name, x in means.items()}
    if any(x["full_ndcg@10"] < x["ndcg@10"] for x in found.values() if "full_ndcg@10" in x):
        say("Some relevant documents were not found: only full_ndcg@10 counts them in both columns")
    return results


def _rerank(bert: Any, sets: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Scores a reranker on the documents that --first finds in each data set."""
    from bert_jax.inference.embeddings import text_vectors
    from bert_jax.inference.finetuned import load_bert
    from bert_jax.inference.reranking import score_reranking
    from bert_jax.tasks.retrieval import bm25_similarities, nearest, similarities

    depth, first = flags.FLAGS.depth, flags.FLAGS.first
    if first == BM25:
        ranked = {
            name: [numbers_R[:depth] for numbers_R in data.ranked]
            or list(nearest(data, bm25_similarities(data), depth))
            for name, data in sets.items()
        }
    else:
        model = load_bert(first)
        if _is_reranker(model):
            raise UserError(f"--first is {first}, a reranker; it must be a model of embeddings")
        embedding = model.embedding_with()
        with Progress("first stage", _count_texts(sets), "texts") as progress:
            ranked = {}
            for name, data in sets.items():
                vectors = text_vectors(model, data, embedding, progress.advance)
                similarity = similarities(*vectors, embedding.similarity)
                ranked[name] = list(nearest(data, similarity, depth))
    number = sum(len(numbers_R) for of_set in ranked.values() for numbers_R in of_set)
    with Progress("rerank", number, "pairs") as progress:
        return {
            name: score_reranking(bert, data, ranked[name], depth, progress.advance)
            | {"first": first}
            for name, data in sets.items()
        }


def _is_reranker(bert: Any) -> bool:
    return "rerank" in bert.methods and len(bert.labels) < 2


def _count_texts(sets: dict[str, Any]) -> int:
    return sum(len(data.queries) + len(data.distinct()[0]) for data in sets.values())


def _title(embedding: Any, results: dict[str, Any], source: str) -> str:
    used = {name: text for name, text in results.items() if name.endswith("prompt") and text}
    prompts = [f"{name} {text!r}".replace("_", " ") for name, text in used.items()]
    how = ", ".join([embedding.pooling, embedding.similarity, *(prompts or ["no prompt"])])
    kind = {"sparse": "Sparse embeddings", "multi_vector": "Multi-vector embeddings"}
    return f"{kind.get(embedding.kind, 'Embeddings')} ({how}) on {source}"


def _print_scores(
    title: str, results: dict[str, Any], own: str, baseline: str, prefix: str
) -> None:
    """Prints the model's own scores beside those of a baseline, whose names have the prefix."""
    from bert_jax.inference.embeddings import SIZES
    from bert_jax.tasks.scores import score_text

    table = empty_table(title, "", own, baseline, "difference")
    for name, value in results.items():
        if f"{prefix}{name}" in results:
            other = results[f"{prefix}{name}"]
            difference = None if None in (value, other) else value - other
            texts = score_text(value), score_text(other), score_text(difference, "+.4f")
            table.add_row(name, *texts)
        elif name.startswith("num_"):
            table.add_row(name.removeprefix("num_").replace("_", " "), f"{value:,}")
        elif name in SIZES:
            table.add_row(name.replace("_", " "), f"{value:,.4g}")
    terminal().print(table)


def _print_sets(title: str, found: dict[str, dict[str, Any]], prefix: str) -> None:
    """Prints a row for each data set, and one for their means; see `_print_scores`."""
    from bert_jax.inference.embeddings import SIZES

    # A terminal has no room for fractions too.
    sizes = [name for name in SIZES if not name.endswith("ratio")]
    shown = "ndcg@10", f"{prefix}ndcg@10", "full_ndcg@10", *sizes
    names = [name for name in shown if name in found["mean"]]
    table = empty_table(title, "", *(name.replace("_", " ") for name in names))
    for name, results in found.items():
        cells = [format(results[x], ",.4g" if x in SIZES else ".4f") for x in names]
        table.add_row(name, *cells)
    terminal().print(table)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
