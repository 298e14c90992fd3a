"""Finds hard negatives for pairs of a query and a positive.

    python -m bert_jax.mine --model=DIR --input=pairs.jsonl --output=mined.jsonl \
        [--corpus=FILE] [--reranker=DIR] [--num_negatives=5] [--relative_margin=0.05]

The input has the rows of fine-tuning embeddings: `anchor` and `positive`. A line of the output has
a query, all its positives, its negatives, and their scores; embeddings and rerankers train on it.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import flags

from bert_jax.base import compilation_cache, cpu_allocator, files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import empty_table, say, terminal
from bert_jax.config import cli
from bert_jax.inference.verbs import read_examples
from bert_jax.tasks.candidates import Columns, read_candidates
from bert_jax.text.bad_records import BadRecords
from bert_jax.text.readers import suffix_of
from bert_jax.text.tables import read_rows


def define_flags() -> None:
    cli.define_model_flag("workdir", "The model whose vectors find the candidates.")
    flags.DEFINE_string(
        "input",
        None,
        "Pairs: JSON lines, CSV, TSV or Parquet with anchor and positive.",
        required=True,
    )
    cli.define_text_columns(
        "The columns of the query and the positive; by default anchor or query, and positive, "
        "positives or pos."
    )
    flags.DEFINE_string("output", None, "FILE.jsonl for the pairs with negatives.", required=True)
    flags.DEFINE_string(
        "corpus",
        "",
        "More texts than the positives of the input: a table or JSON lines with text, after any "
        "title, or FILE.txt with a text on each line.",
    )
    flags.DEFINE_string("reranker", "", "A reranker, whose scores decide and are written.")
    flags.DEFINE_integer("num_negatives", 5, "Number of negatives of each query.", lower_bound=1)
    flags.DEFINE_integer(
        "range_min", 0, "Leave out this many of the best candidates that the limits let pass."
    )
    flags.DEFINE_integer(
        "range_max", None, "Take none after this many of them; by default enough for num_negatives."
    )
    text = "Let no candidate pass that scores above"
    m = "where m is the lowest score of a positive of the query"
    flags.DEFINE_float("relative_margin", None, f"{text} m - |m| * this, {m}.")
    flags.DEFINE_float("absolute_margin", None, f"{text} m - this, {m}.")
    flags.DEFINE_float("max_score", None, f"{text} this.")
    flags.DEFINE_float("min_score", None, "Let no candidate pass that scores below this.")
    flags.DEFINE_enum("sampling", "top", ["top", "random"], "Take the best candidates, or any.")
    flags.DEFINE_integer("seed", 0, "--sampling=random: seed.")
    flags.DEFINE_bool(
        "include_positives",
        False,
        "Keep positives among the candidates: a file that rerankers are scored on, not trained.",
    )
    cli.define_embedding_flags("", "", "by default as the directory of the model says")


def main(_) -> None:
    cli.end_on_sigterm()
    args = flags.FLAGS
    files.check_output(args.output, (".jsonl",), args.input)
    if args.sampling == "top":
        cli.refuse_flags(("seed",), "with --sampling=top")
    cpu_allocator.prepare_process()
    # Imported late to load JAX after the checks.
    from bert_jax.inference.finetuned import load_bert
    from bert_jax.inference.mining import Rules, mine

    compilation_cache.keep_compiled_programs()
    rules = Rules(**{name: args[name].value for name in Rules._fields})
    bert, reranker = (load_bert(path) if path else None for path in (args.model, args.reranker))
    bert.require_dense("mining")
    embedding = bert.embedding_with(args.pooling, True, args.max_length)
    embedding = embedding.with_prompts(query=args.query_prompt, document=args.document_prompt)
    # Object storage is no place for files that grow.
    folder = None if files.is_remote(args.output) else Path(f"{args.output}.vectors")
    counts, sums = Counter(queries=0, positives=0, negatives=0), Counter()
    mined = mine(
        bert,
        _pairs(args.input, args.text_columns),
        _corpus(args.corpus),
        rules,
        reranker=reranker,
        embedding=embedding,
        folder=folder,
        counts=counts,
        shows_progress=True,
    )
    with files.new_file(args.output) as stream:
        for row in mined:
            stream.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            counts["queries"] += 1
            for side in ("positive", "negative"):
                scores = row.get(f"{side}_scores", ())
                counts[f"{side}s"] += len(scores)
                sums[f"{side}s"] += sum(scores)
        if not counts["queries"]:
            found = ", ".join(f"{name}: {number:,}" for name, number in counts.items() if number)
            raise UserError(f"no query has a negative ({found})")
    if folder:
        files.remove_directory(folder)
    table = empty_table(f"Hard negatives in {args.output}", "", "number", "mean score")
    for name, number in counts.items():
        if number:
            mean = f"{sums[name] / number:.4f}" if name in sums else ""
            table.add_row(name, f"{number:,}", mean)
    terminal().print(table)


def _pairs(path: str, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    source, num_pairs, num_left_out = files.checked_path(path, "--input"), 0, 0
    for query, documents, labels, *_ in read_candidates(source, BadRecords(), Columns(*columns)):
        positives = [text for text, label in zip(documents, labels, strict=True) if label > 0]
        if positives:
            yield query, positives
            num_pairs += 1
        else:
            num_left_out += 1
    if not num_pairs:
        raise UserError(f"{path} has no row with a positive")
    if num_left_out:
        say(f"{num_left_out:,} rows of {path} without a positive are left out")


def _corpus(path: str) -> Iterator[str]:
    """Yields the texts of a file that are not blank, each after its title."""
    if not path:
        return
    source, num_blank = files.checked_path(path, "--corpus"), 0
    if suffix_of(source) == ".txt":
        rows = read_examples(source)
    else:
        rows = read_rows(source, ("text",), BadRecords(), optional=("title",))
    for *_, values in rows:
        text = f"{values.get('title', '')} {values['text']}".strip()
        if text:
            yield text
        num_blank += not text
    if num_blank:
        say(f"{num_blank:,} texts of {path} are blank and left out")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
