"""Fills masks, scores sentences and solves tasks with a trained model.

    python -m bert_jax.predict --model=PATH fill-mask "Paris is the [MASK] of France."
    python -m bert_jax.predict --model=PATH next-sentence "It rained." "We stayed in."
    python -m bert_jax.predict --model=PATH score "The cat sat on the mat."
    python -m bert_jax.predict --model=ELECTRA detect "The chef ate the guests."
    python -m bert_jax.predict --model=BART denoise "The [MASK] sat on the mat."
    python -m bert_jax.predict --model=PATH write "My fellow" --length=32 --steps=16
    python -m bert_jax.predict --model=PATH features --input=FILE.jsonl --output=FILE.npz
    python -m bert_jax.predict --model=PATH attention "It rained." --output=view.html

    python -m bert_jax.predict --model=FINE_TUNED classify "A fine film." ["and its pair"]
    python -m bert_jax.predict --model=FINE_TUNED answer "Who came?" "Only Ada came to see us."
    python -m bert_jax.predict --model=FINE_TUNED tag "Ada lives in London."
    python -m bert_jax.predict --model=FINE_TUNED choose "Where do fish live?" "trees" "water"
    python -m bert_jax.predict --model=RERANKER rerank "Where do fish live?" "water" "trees"
    python -m bert_jax.predict --model=FINE_TUNED classify --input=FILE.csv --output=FILE.jsonl

Every command but attention takes --input; --json prints a line such as the output would contain.
PATH is a work directory (its newest checkpoint or, of fine-tuning, its best; or the one of --step),
a Hugging Face directory, or a Google checkpoint. FINE_TUNED is a work directory of fine-tuning, or
a Hugging Face directory with a task head; RERANKER is one whose head gives one number, also as
sentence-transformers saves it. In Python, `bert_jax.load(PATH)` has the same methods.
"""

import inspect
import json
import sys
from typing import TYPE_CHECKING

from absl import flags
from etils import epath
from rich.table import Table

from bert_jax import inference
from bert_jax.base import compilation_cache, cpu_allocator, files
from bert_jax.base.errors import printable
from bert_jax.base.parts import load_part
from bert_jax.base.progress import Progress, terminal
from bert_jax.config import cli
from bert_jax.heads import Head
from bert_jax.heads.verb import TEXT_OR_PAIR, Item, Verb
from bert_jax.inference.verbs import VERBS, format_of, predict_file

if TYPE_CHECKING:
    from bert_jax.inference.bert import Bert

# A page with the attention of more tokens is too large and too dense to read.
_ATTENTION_LENGTH = 128


def features(bert: "Bert") -> None:
    from bert_jax.inference.features import SUFFIXES, count_texts, write_features

    args = flags.FLAGS
    layers = tuple(map(int, args.layers))
    # Arguments are checked before the file is read.
    files.check_output(args.output, SUFFIXES, args.input)
    bert.layers(layers)
    embedding = bert.embedding_with(*(args[name].value for name in _EMBEDDING_OPTIONS))
    total = count_texts(bert, args.input, args.text_columns)
    with Progress("features", total, "texts") as progress:
        count = write_features(
            bert,
            args.input,
            args.output,
            layers=layers,
            embedding=embedding,
            text_columns=args.text_columns,
            advance=progress.advance,
        )
    kind = embedding.kind.replace("_", "-")
    if kind == "dense":
        kind = f"{embedding.pooling}, {'normalized' if embedding.normalize else 'not normalized'}"
    print(f"features ({kind}) of {count:,} texts are in {args.output}")


def attention(bert: "Bert", text: str, text_b: str | None = None) -> None:
    args = flags.FLAGS
    files.check_output(args.output, (".html", ".htm"))
    length = args.max_length
    if length is None:
        length = min(_ATTENTION_LENGTH, bert.max_length)
    view = bert.attention(text, text_b, top_k=args.top_k, max_length=length)
    files.write_whole(args.output, view.page().encode())
    print(f"open {args.output} in a browser: {len(view.tokens)} tokens")


# These commands have no results: each takes the fields of one example and writes a file of its own.
_EMBEDDING_OPTIONS = ("pooling", "normalize", "max_length", "stride", "prompt", "prompt_name")
_FEATURES_OPTIONS = ("layers", "text_columns", *_EMBEDDING_OPTIONS)
_WRITERS = {
    "features": Verb("features", features, inspect.Signature(), _FEATURES_OPTIONS),
    "attention": Verb("attention", attention, TEXT_OR_PAIR, ("top_k", "max_length")),
}
COMMANDS = VERBS | _WRITERS


def define_flags() -> None:
    flags.DEFINE_string(
        "model", None, "Work directory, Hugging Face directory or Google checkpoint.", required=True
    )
    flags.DEFINE_integer(
        "step", None, "Step of the checkpoint; by default the newest, or the best of fine-tuning."
    )
    flags.DEFINE_integer(
        "top_k", 5, "fill-mask, attention: number of guesses for each mask.", lower_bound=1
    )
    flags.DEFINE_integer("n_best", 5, "answer: number of answers.", lower_bound=1)
    flags.DEFINE_bool(
        "with_no_answer",
        None,
        "answer: allow 'no answer'; by default only for models fine-tuned on SQuAD 2.0.",
    )
    flags.DEFINE_float(
        "null_threshold",
        None,
        "answer: the answer is empty if the score of no answer is above that of the best span by "
        "more than this, such as best_f1_thresh in results.json; by default as in training, or 0.",
    )
    flags.DEFINE_float(
        "threshold",
        None,
        "classify: probability above which each of several labels a text is predicted; by default "
        "as in training, or 0.5.",
        lower_bound=0.0,
        upper_bound=1.0,
    )
    flags.DEFINE_bool("json", False, "Print one JSON object; not for features and attention.")
    flags.DEFINE_string(
        "input",
        "",
        'A file of examples: JSON lines such as {"text": ..., "text_b": ...}, TSV or CSV with such '
        "columns, FILE.txt with a text on each line, or a format that fine-tuning reads; not for "
        "attention.",
    )
    cli.define_text_columns(
        "fill-mask, detect, classify, features: names of the columns or fields of one or two texts "
        "in --input; by default as in training, or text and text_b."
    )
    flags.DEFINE_string(
        "output",
        "",
        "features: FILE.npz or FILE.jsonl; attention: FILE.html; for predictions FILE.jsonl.",
    )
    flags.DEFINE_list(
        "layers", ["-1"], "features: 0 is the embeddings' output, n the n-th block's, -1 the last."
    )
    pooling = (
        "features: the state of [CLS], the mean over all tokens, or the state of every token; by "
        "default the mean, or as in a directory of sentence-transformers."
    )
    flags.DEFINE_enum("pooling", None, inference.POOLINGS, pooling)
    flags.DEFINE_bool(
        "normalize",
        None,
        "features: scale each vector to length 1; by default only as in a directory of "
        "sentence-transformers.",
    )
    flags.DEFINE_integer(
        "stride",
        None,
        "features: split longer texts into windows that begin this many tokens apart, and average "
        "their vectors; by default longer texts are truncated.",
    )
    flags.DEFINE_string(
        "prompt",
        None,
        "features: text that is put before each text, such as 'query: '; by default as in a "
        "directory of sentence-transformers.",
    )
    flags.DEFINE_string(
        "prompt_name",
        None,
        "features: name of a prompt in a directory of sentence-transformers, such as query.",
    )
    flags.DEFINE_integer("length", 64, "write: number of tokens for each [MASK].", lower_bound=1)
    flags.DEFINE_integer("steps", 32, "write: number of steps.", lower_bound=1)
    flags.DEFINE_integer("samples", None, "write: number of texts for a prompt.", lower_bound=1)
    flags.DEFINE_enum(
        "order", "confident", inference.ORDERS, "write: the tokens that a step keeps first."
    )
    flags.DEFINE_integer(
        "block", 0, "write: tokens of a block, from left to right; 0 for anywhere.", lower_bound=0
    )
    flags.DEFINE_float("temperature", 1.0, "write: 0 takes the likeliest token.", lower_bound=0.0)
    flags.DEFINE_integer("seed", 0, "write: other seeds write other texts.")
    flags.DEFINE_bool("show_steps", False, "write: show the text after each step.")
    flags.DEFINE_integer(
        "max_length",
        None,
        "Largest number of tokens in a text; by default the model's limit for features, and "
        f"{_ATTENTION_LENGTH} for attention.",
    )


def main(argv: list[str]) -> None:
    cli.end_on_sigterm()
    command, example = _command(argv[1:])
    name, args = command.name, flags.FLAGS
    cpu_allocator.prepare_process()
    # Imported late to load JAX after the checks.
    import bert_jax

    compilation_cache.keep_compiled_programs()
    bert = bert_jax.load(args.model, args.step)
    if name not in _WRITERS:
        # A method that the model lacks is refused before the output is opened.
        getattr(bert, name.replace("-", "_"))
    options = {option: args[option].value for option in command.options}
    if name in _WRITERS:
        command.predict(bert, **example)
    elif args.input:
        with Progress(name, None, "examples") as progress:
            count = predict_file(
                command, bert, args.input, args.output, progress.advance, **options
            )
        format = format_of(epath.Path(args.input), command.format)
        print(f"{args.input} was read as {format}")
        print(f"predictions for {count:,} examples are in {args.output}")
    else:
        (result,) = command.predict(bert, [example], **options)
        _print_result(example, result)


def _verbs_of_parts() -> dict[str, Verb]:
    """Returns the verbs of the heads that --part names."""
    parts = (load_part(name, {}, "--part") for name in flags.FLAGS.part)
    return {x.verb.name: x.verb for x in parts if isinstance(x, Head) and x.verb}


def _command(words: list[str]) -> tuple[Verb, Item]:
    """Parses the name of the command and the example of its words, and checks all flags."""
    commands = COMMANDS | _verbs_of_parts()
    known = ", ".join(commands)
    if not words:
        raise cli.UsageError(f"a command is missing after the flags: one of {known}")
    name, *texts = words
    if name not in commands:
        raise cli.UsageError(
            f"there is no command {name!r}; it must be one of {known}, or the verb of a head that "
            "--part names"
        )
    command, args = commands[name], flags.FLAGS
    reads_file = name == "features" or name not in _WRITERS and args.input
    file_flags = ("input", "output") if reads_file else ("output",) if name in _WRITERS else ()
    taken = {*command.options, *(file_flags or ("json",))}
    known_flags = {"input", "output", "json"}.union(*(c.options for c in commands.values()))
    cli.refuse_flags(sorted(known_flags - taken), f"on {name}")
    try:
        bound = (inspect.Signature() if reads_file else command.words).bind(*texts)
    except TypeError as error:
        raise cli.UsageError(f"{name}: {error}; put each text in quotes") from None
    for flag in file_flags:
        if not args[flag].value:
            raise cli.UsageError(f"--{flag} is missing; see python -m bert_jax.predict --help")
    bound.apply_defaults()
    return command, {field: text for field, text in bound.arguments.items() if text is not None}


def _print_result(example: Item, result: Item) -> None:
    """Prints an example and its result as JSON, or the result as tables and lines."""
    if flags.FLAGS.json:
        # ASCII escapes are for terminals with a limited encoding.
        is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        print(printable(json.dumps(example | result, ensure_ascii=not is_unicode)))
        return
    for name, value in result.items():
        if isinstance(value, float):
            print(f"{name.replace('_', ' ')}: {value:.4f}")
        if isinstance(value, str) and len(result) == 1:
            print(value)
        if name == "prediction" and isinstance(value, list) and "probabilities" in result:
            print(f"labels: {', '.join(value) or 'none'}")
            continue
        if name == "probabilities":
            # The choices of a command line are named by their index.
            texts = {str(i): text for i, text in enumerate(example.get("choices", ()))}
            value = [{"label": texts.get(key, key), "probability": p} for key, p in value.items()]
        if isinstance(value, list):
            # Each [MASK] has its own list.
            for rows in filter(None, value if name == "masks" else [value]):
                table = Table(*rows[0])
                for row in rows:
                    cells = (f"{x:.4f}" if isinstance(x, float) else str(x) for x in row.values())
                    table.add_row(*cells)
                terminal().print(table)


if __name__ == "__main__":
    define_flags()
    cli.run(main, words=True)
