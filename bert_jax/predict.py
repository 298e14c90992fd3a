"""Fills masks, scores sentences, computes features and solves tasks with a trained BERT.

    python -m bert_jax.predict --model=PATH fill-mask "Paris is the [MASK] of France."
    python -m bert_jax.predict --model=PATH next-sentence "It rained." "We stayed in."
    python -m bert_jax.predict --model=PATH score "The cat sat on the mat."
    python -m bert_jax.predict --model=ELECTRA detect "The chef ate the guests."
    python -m bert_jax.predict --model=PATH features --input=FILE.jsonl --output=FILE.npz
    python -m bert_jax.predict --model=PATH attention "It rained." --output=view.html

    python -m bert_jax.predict --model=FINE_TUNED classify "A fine film." ["and its pair"]
    python -m bert_jax.predict --model=FINE_TUNED answer "Who came?" "Only Ada came to see us."
    python -m bert_jax.predict --model=FINE_TUNED tag "Ada lives in London."
    python -m bert_jax.predict --model=FINE_TUNED choose "Where do fish live?" "trees" "water"
    python -m bert_jax.predict --model=FINE_TUNED classify --input=FILE.csv --output=FILE.jsonl

PATH is a work directory (its best checkpoint if one was kept, otherwise the newest, or that of
--step), a Hugging Face directory, or a Google checkpoint. FINE_TUNED is a work directory of
fine-tuning, or a Hugging Face directory with a task head. In Python, `bert_jax.load(PATH)` has the
same methods.
"""

import inspect
import json
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags
from rich.table import Table

from bert_jax import inference
from bert_jax.base import cpu_allocator, files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import Progress, terminal
from bert_jax.config import cli

if TYPE_CHECKING:
    from bert_jax.inference.bert import Bert
    from bert_jax.inference.finetuned import FineTuned

# An attention page with more tokens is too large, and too dense to read.
_ATTENTION_LENGTH = 128
# The results of a command, as a JSON object of numbers and of lists of objects.
Values = dict[str, Any]


def fill_mask(bert: "Bert", text: str, text_b: str | None = None) -> Values:
    """Guesses the likeliest tokens for each [MASK]."""
    masks = bert.fill_mask(text, text_b, top_k=flags.FLAGS.top_k)
    return {"masks": [[guess._asdict() for guess in mask] for mask in masks]}


def next_sentence(bert: "Bert", text: str, text_b: str) -> Values:
    """Computes the probability that the second sentence follows the first."""
    probability = bert.next_sentence(text, text_b)
    return {"is_next": probability, "random": 1 - probability}


def score(bert: "Bert", text: str) -> Values:
    """Computes the log-probability of each token (in nats) and of the text."""
    result = bert.score(text)
    pairs = zip(result.tokens, result.log_probs, strict=True)
    return {
        "tokens": [{"token": token, "log_prob": log_prob} for token, log_prob in pairs],
        "pseudo_log_likelihood": result.log_likelihood,
        "pseudo_perplexity": result.perplexity,
    }


def detect(bert: "Bert", text: str, text_b: str | None = None) -> Values:
    """Marks the tokens that look replaced, with the probability that they are."""
    return {"tokens": [token._asdict() for token in bert.detect(text, text_b)]}


def features(bert: "Bert") -> Values:
    """Writes the features of a file of texts to a file."""
    from bert_jax.inference.features import check_output, count_texts, write_features

    args = flags.FLAGS
    try:
        layers = tuple(map(int, args.layers))
    except ValueError:
        value = ",".join(args.layers)
        raise cli.UsageError(f"--layers={value} must be whole numbers, such as -1,-2") from None
    # Arguments are checked before the file is read.
    check_output(args.output, args.input)
    bert.layers(layers)
    how = bert.embedding_with(args.pooling, args.normalize, args.max_length, args.stride)
    with Progress("features", count_texts(bert, args.input), "texts") as progress:
        summary = write_features(
            bert,
            args.input,
            args.output,
            layers=layers,
            how=how,
            advance=progress.advance,
        )
    if summary.num_cut:
        _warn(
            f"{summary.num_cut:,} texts are truncated to {how.max_length} tokens; the first is "
            f"{summary.first_cut}"
        )
    if summary.num_blank:
        _warn(
            f"{summary.num_blank:,} texts are blank, and have the features of [CLS] [SEP] alone; "
            f"the first is {summary.first_blank}"
        )
    kind = f"{how.pooling}, {'normalized' if how.normalize else 'not normalized'}"
    print(f"features ({kind}) of {summary.num_texts:,} texts are in {args.output}")
    return {}


def attention(bert: "Bert", text: str, text_b: str | None = None) -> Values:
    """Writes an HTML page that shows the attention between tokens."""
    from bert_jax.inference.attention_page import attention_page

    args = flags.FLAGS
    path = files.open_path(args.output, "--output")
    if path.suffix not in (".html", ".htm"):
        raise UserError(f"--output is {path}; it must be FILE.html")
    length = args.max_length
    if length is None:
        length = min(_ATTENTION_LENGTH, bert.max_length)
    view = bert.attention(text, text_b, top_k=args.top_k, max_length=length)
    files.write_whole(path, attention_page(view).encode())
    print(f"open {args.output} in a browser: {len(view.tokens)} tokens")
    return {}


def classify(bert: "FineTuned", text: str, text_b: str | None = None) -> Values:
    """Ranks the classes of a sentence or a pair, or computes the number of a regression."""
    found = bert.classify(text, text_b)
    if isinstance(found, float):
        return {"value": found}
    return {"labels": [label._asdict() for label in found]}


def answer(bert: "FineTuned", question: str, text: str) -> Values:
    """Ranks answers to a question, with their characters in the text."""
    args = flags.FLAGS
    found = bert.answer(question, text, n_best=args.n_best, with_no_answer=args.with_no_answer)
    keys = ("text", "start", "end", "probability")
    return {"answers": [{key: getattr(x, key) for key in keys} for x in found]}


def tag(bert: "FineTuned", text: str) -> Values:
    """Finds the tag of each word, and the entities that the tags form."""
    words, entities = bert.tag(text), bert.entities(text)
    return {
        "words": [word._asdict() for word in words],
        "entities": [entity._asdict() for entity in entities],
    }


def choose(bert: "FineTuned", context: str, choice: str, choice_b: str, *choices: str) -> Values:
    """Ranks answers to a question, or endings of a text."""
    found = bert.choose(context, [choice, choice_b, *choices])
    return {"choices": [x._asdict() for x in found]}


def from_file(command: str, bert: "Bert") -> Values:
    """Applies a command to the examples of a file."""
    from bert_jax.inference.file_predictions import predict_file

    args = flags.FLAGS
    names = {"fill-mask": ("top_k",), "answer": ("n_best", "with_no_answer")}.get(command, ())
    options = {name: args[name].value for name in names}
    with Progress(command, None, "examples") as progress:
        count = predict_file(command, bert, args.input, args.output, progress.advance, **options)
    print(f"predictions for {count:,} examples are in {args.output}")
    return {}


class Command(NamedTuple):
    """A command of `predict`.

    Attributes:
      run: The function that runs it on a model and texts.
      flags: The flags that it takes in addition to --model and --step.
      required: The flags among these that must be given.
      has_head: Whether it needs a task head.
      takes_file: Whether it takes --input and --output in place of texts.
    """

    run: Callable[..., Values]
    flags: tuple[str, ...]
    required: tuple[str, ...] = ()
    has_head: bool = False
    takes_file: bool = False


_FEATURES_FLAGS = ("input", "output", "layers", "pooling", "normalize", "max_length", "stride")
COMMANDS = {
    "fill-mask": Command(fill_mask, ("top_k", "json"), takes_file=True),
    "next-sentence": Command(next_sentence, ("json",)),
    "score": Command(score, ("json",), takes_file=True),
    "detect": Command(detect, ("json",)),
    "features": Command(features, _FEATURES_FLAGS, required=("input", "output")),
    "attention": Command(attention, ("output", "top_k", "max_length"), required=("output",)),
    "classify": Command(classify, ("json",), has_head=True, takes_file=True),
    "answer": Command(answer, ("n_best", "with_no_answer", "json"), has_head=True, takes_file=True),
    "tag": Command(tag, ("json",), has_head=True, takes_file=True),
    "choose": Command(choose, ("json",), has_head=True, takes_file=True),
}


def define_flags() -> None:
    """Defines the flags of the command line."""
    flags.DEFINE_string("model", "", "Work directory, Hugging Face directory or Google checkpoint.")
    flags.DEFINE_integer(
        "step", None, "Step of a work directory's checkpoint; by default the best, or the newest."
    )
    flags.DEFINE_integer("top_k", 5, "fill-mask, attention: number of guesses for each mask.")
    flags.DEFINE_integer("n_best", 5, "answer: number of answers.")
    flags.DEFINE_bool(
        "with_no_answer",
        None,
        "answer: allow 'no answer'; by default only for models fine-tuned on SQuAD 2.0.",
    )
    flags.DEFINE_bool("json", False, "Print one JSON object; not for features and attention.")
    flags.DEFINE_string(
        "input",
        "",
        'features: FILE.txt with a text on each line, or JSON lines, {"text": ..., "text_b": ...}. '
        "classify, answer, tag, choose, score, "
        "fill-mask: JSON lines or a file in a format that fine-tuning reads.",
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
        "features: divide longer texts into windows that begin this many tokens apart, and average "
        "their vectors; by default longer texts are cut.",
    )
    flags.DEFINE_integer(
        "max_length",
        None,
        "Most tokens in a text; by default the model's limit for features, and "
        f"{_ATTENTION_LENGTH} for attention.",
    )


def main(argv: list[str]) -> None:
    cli.end_on_sigterm()
    name, texts = _command(argv[1:])
    command, args = COMMANDS[name], flags.FLAGS
    if not args.model:
        raise cli.UsageError("--model is missing: the directory or checkpoint of a BERT")
    cpu_allocator.keep_freed_memory()
    cpu_allocator.wait_for_each_program()
    # Imported late to load JAX after the checks.
    import bert_jax

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: _warn(str(message))
        bert = bert_jax.load(args.model, args.step)
        for note in bert.notes:
            _warn(note)
        if command.has_head and not hasattr(bert, "head"):
            raise UserError(
                f"{bert.source} has no task head: it must be a work directory of python -m "
                "bert_jax.finetune, or a Hugging Face directory of a "
                "BertForSequenceClassification, ...TokenClassification, ...QuestionAnswering or "
                "...MultipleChoice"
            )
        if command.takes_file and args.input:
            values = from_file(name, bert)
        else:
            values = command.run(bert, *texts)
    if args.json:
        # ASCII escapes are for terminals with a limited encoding.
        is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        print(json.dumps(values, ensure_ascii=not is_unicode))
    else:
        _print_values(values)


def _command(words: list[str]) -> tuple[str, list[str]]:
    """Returns the name of the command and its texts, and checks all flags."""
    known = ", ".join(COMMANDS)
    if not words:
        raise cli.UsageError(f"a command is missing after the flags: one of {known}")
    name, *texts = words
    if name not in COMMANDS:
        raise cli.UsageError(f"there is no command {name!r}; it must be one of {known}")
    command, args = COMMANDS[name], flags.FLAGS
    reads_file = command.takes_file and bool(args.input)
    taken = {*command.flags, "input", "output"} - {"json"} if reads_file else command.flags
    for flag in sorted({flag for c in COMMANDS.values() for flag in c.flags}):
        if args[flag].present and flag not in taken:
            raise cli.UsageError(f"--{flag} has no effect on {name}; leave it out")
    if reads_file and texts:
        raise cli.UsageError(f"{name} takes texts or --input, not both")
    if texts and "input" in command.required:
        raise cli.UsageError(f"{name} takes no texts, only --input=FILE")
    try:
        if not reads_file:
            inspect.signature(command.run).bind(None, *texts)
    except TypeError as error:
        raise cli.UsageError(f"{name}: {error}; put each text in quotes") from None
    for flag in ("output",) if reads_file else command.required:
        if not args[flag].value:
            raise cli.UsageError(f"--{flag} is missing; see python -m bert_jax.predict --help")
    return name, texts


def _print_values(values: Values) -> None:
    """Prints lists of objects as tables and numbers as lines."""
    for name, value in values.items():
        if isinstance(value, float):
            print(f"{name.replace('_', ' ')}: {value:.4f}")
            continue
        # Each [MASK] has its own list.
        tables = value if name == "masks" else [value]
        for rows in filter(None, tables):
            table = Table(*rows[0])
            for row in rows:
                cells = (f"{x:.4f}" if isinstance(x, float) else str(x) for x in row.values())
                table.add_row(*cells)
            terminal().print(table)


def _warn(sentence: str) -> None:
    print(f"warning: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    define_flags()
    cli.run(main, words=True)
