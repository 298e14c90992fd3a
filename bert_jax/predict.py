"""Fills masks, scores sentences, computes features and solves tasks with a trained BERT.

    python -m bert_jax.predict --model=PATH fill-mask "Paris is the [MASK] of France."
    python -m bert_jax.predict --model=PATH next-sentence "It rained." "We stayed in."
    python -m bert_jax.predict --model=PATH score "The cat sat on the mat."
    python -m bert_jax.predict --model=PATH features --input=FILE.jsonl --output=FILE.npz
    python -m bert_jax.predict --model=PATH attention "It rained." --output=view.html

    python -m bert_jax.predict --model=FINE_TUNED classify "A fine film." ["and its pair"]
    python -m bert_jax.predict --model=FINE_TUNED answer "Who came?" "Only Ada came to see us."
    python -m bert_jax.predict --model=FINE_TUNED tag "Ada lives in London."
    python -m bert_jax.predict --model=FINE_TUNED choose "Where do fish live?" "trees" "water"

PATH is a work directory (its newest checkpoint, or that of --step), a Hugging Face directory,
or a Google checkpoint. FINE_TUNED is a work directory of fine-tuning (its best checkpoint), or a
Hugging Face directory with the head of a task. `bert_jax.load(PATH)` has the same methods in
Python.
"""

import difflib
import json
import math
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bert_jax import cli, cpu_allocator, files, inference
from bert_jax.progress import Progress

if TYPE_CHECKING:
    from bert_jax.inference.bert import Bert, Guess
    from bert_jax.inference.finetuned import FineTuned

# A page of attention with more tokens is too dense to read, and too large.
_ATTENTION_LENGTH = 128
# Marks a command that takes any number of further texts.
_MORE = "[...]"


class Command(NamedTuple):
    """A command of `predict`.

    Attributes:
      run: The function that runs it, given the model and the texts.
      texts: The names of its texts; those in brackets are optional.
      flags: The flags that it takes beside --model and --step.
      required: The flags that must be given.
    """

    run: Callable[["Bert", list[str]], None]
    texts: tuple[str, ...]
    flags: tuple[str, ...]
    required: tuple[str, ...] = ()


def fill_mask(bert: "Bert", texts: list[str]) -> None:
    """Prints the likeliest tokens for each [MASK]."""
    guesses = bert.fill_mask(*texts, top_k=flags.FLAGS.top_k)
    if flags.FLAGS.json:
        _print_json({"masks": [_plain(mask) for mask in guesses]})
        return
    for number, mask in enumerate(guesses, 1):
        title = f"[MASK] {number} of {len(guesses)}" if len(guesses) > 1 else "[MASK]"
        _print_table(
            (title, "probability"), [(guess.token, f"{guess.probability:.4f}") for guess in mask]
        )


def next_sentence(bert: "Bert", texts: list[str]) -> None:
    """Prints the probability that the second sentence follows the first."""
    probability = bert.next_sentence(*texts)
    if flags.FLAGS.json:
        _print_json({"is_next": probability, "random": 1 - probability})
        return
    rows = [("is next", f"{probability:.4f}"), ("random", f"{1 - probability:.4f}")]
    _print_table(("second sentence", "probability"), rows)


def score(bert: "Bert", texts: list[str]) -> None:
    """Prints the pseudo-log-likelihood of a text, and the log-probability of each token."""
    result = bert.score(*texts)
    if flags.FLAGS.json:
        tokens = zip(result.tokens, result.log_probs, strict=True)
        _print_json(
            {
                "pseudo_log_likelihood": result.log_likelihood,
                "pseudo_perplexity": result.perplexity,
                "tokens": [{"token": token, "log_prob": value} for token, value in tokens],
            }
        )
        return
    rows = [
        (token, f"{value:.4f}")
        for token, value in zip(result.tokens, result.log_probs, strict=True)
    ]
    _print_table(("token", "log P (nats)"), rows)
    print(
        f"pseudo-log-likelihood {result.log_likelihood:.4f} nats over {len(result.tokens)} tokens, "
        f"pseudo-perplexity {result.perplexity:.2f}"
    )


def features(bert: "Bert", texts: list[str]) -> None:
    """Writes the features of a file of texts to a file."""
    from bert_jax.inference.features import check_output, count_texts, write_features

    args = flags.FLAGS
    try:
        layers = tuple(map(int, args.layers))
    except ValueError:
        raise cli.UsageError(
            f"--layers={','.join(args.layers)} must be whole numbers, such as -1,-2"
        ) from None
    # Arguments are checked before the file is read.
    check_output(args.output, args.input)
    bert.layers(layers)
    bert.length(args.max_length)
    with Progress("features", count_texts(bert, args.input), "texts") as progress:
        summary = write_features(
            bert,
            args.input,
            args.output,
            layers=layers,
            pooling=args.pooling,
            max_length=args.max_length,
            advance=progress.advance,
        )
    if summary.num_cut:
        length = bert.length(args.max_length)
        _warn(
            f"{summary.num_cut:,} texts are longer than {length} tokens, and cut to them; the "
            f"first is {summary.first_cut}"
        )
    print(f"features of {summary.num_texts:,} texts are in {args.output}")


def attention(bert: "Bert", texts: list[str]) -> None:
    """Writes an HTML page that shows the attention between tokens."""
    from bert_jax.inference.arguments import open_output
    from bert_jax.inference.attention_page import attention_page

    args = flags.FLAGS
    path = open_output(args.output, (".html", ".htm"))
    length = args.max_length
    if length is None:
        length = min(_ATTENTION_LENGTH, bert.max_length)
    view = bert.attention(*texts, top_k=args.top_k, max_length=length)
    files.write_whole(path, attention_page(view).encode())
    print(f"open {args.output} in a browser: {len(view.tokens)} tokens")


def classify(bert: "FineTuned", texts: list[str]) -> None:
    """Prints the classes of a sentence or a pair, or the output of a regression."""
    found = bert.classify(*texts)
    if isinstance(found, float):
        if flags.FLAGS.json:
            _print_json({"value": found})
        else:
            print(f"{found:.4f}")
    elif flags.FLAGS.json:
        _print_json({"labels": [label._asdict() for label in found]})
    else:
        _print_table(("label", "probability"), [(x.label, f"{x.probability:.4f}") for x in found])


def answer(bert: "FineTuned", texts: list[str]) -> None:
    """Prints the likeliest answers to a question, and where they are in the text."""
    args = flags.FLAGS
    found = bert.answer(*texts, n_best=args.n_best, with_no_answer=args.with_no_answer)
    if args.json:
        keys = ("text", "start", "end", "probability")
        _print_json({"answers": [{key: getattr(x, key) for key in keys} for x in found]})
        return
    rows = [(x.text or "(no answer)", f"{x.start}-{x.end}", f"{x.probability:.4f}") for x in found]
    _print_table(("answer", "characters", "probability"), rows)


def tag(bert: "FineTuned", texts: list[str]) -> None:
    """Prints the tag of each word."""
    found = bert.tag(*texts)
    if flags.FLAGS.json:
        _print_json({"words": [word._asdict() for word in found]})
        return
    rows = [(x.word, x.tag, f"{x.probability:.4f}") for x in found]
    _print_table(("word", "tag", "probability"), rows)


def choose(bert: "FineTuned", texts: list[str]) -> None:
    """Ranks answers to a question, or endings of a text."""
    context, *choices = texts
    found = bert.choose(context, choices)
    if flags.FLAGS.json:
        _print_json({"choices": [choice._asdict() for choice in found]})
    else:
        _print_table(("choice", "probability"), [(x.text, f"{x.probability:.4f}") for x in found])


COMMANDS = {
    "fill-mask": Command(fill_mask, ("text", "[text_b]"), ("top_k", "json")),
    "next-sentence": Command(next_sentence, ("text", "text_b"), ("json",)),
    "score": Command(score, ("text",), ("json",)),
    "features": Command(
        features,
        (),
        ("input", "output", "layers", "pooling", "max_length"),
        required=("input", "output"),
    ),
    "attention": Command(
        attention, ("text", "[text_b]"), ("output", "top_k", "max_length"), required=("output",)
    ),
    "classify": Command(classify, ("text", "[text_b]"), ("json",)),
    "answer": Command(answer, ("question", "text"), ("n_best", "with_no_answer", "json")),
    "tag": Command(tag, ("text",), ("json",)),
    "choose": Command(choose, ("context", "choice", "choice", _MORE), ("json",)),
}


def define_flags() -> None:
    """Defines the flags of the command line."""
    flags.DEFINE_string("model", "", "Work directory, Hugging Face directory or Google checkpoint.")
    flags.DEFINE_integer("step", None, "Step of the checkpoint in a work directory.")
    flags.DEFINE_integer("top_k", 5, "fill-mask, attention: number of guesses for each mask.")
    flags.DEFINE_integer("n_best", 5, "answer: number of answers.")
    flags.DEFINE_bool(
        "with_no_answer",
        None,
        "answer: whether to allow no answer; by default only after fine-tuning on SQuAD 2.0.",
    )
    flags.DEFINE_bool("json", False, "Print one JSON object; not for features and attention.")
    flags.DEFINE_string("input", "", 'features: JSON lines, {"text": ..., "text_b": ...}.')
    flags.DEFINE_string("output", "", "features: FILE.npz or FILE.jsonl; attention: FILE.html.")
    flags.DEFINE_list(
        "layers", ["-1"], "features: 0 is the embeddings' output, n the n-th block's, -1 the last."
    )
    flags.DEFINE_enum(
        "pooling",
        "mean",
        inference.POOLINGS,
        "features: those of [CLS], the mean over tokens, or all tokens.",
    )
    flags.DEFINE_integer(
        "max_length",
        None,
        "Most tokens of a text; by default the model's limit for features, and "
        f"{_ATTENTION_LENGTH} for attention.",
    )


def main(argv: list[str]) -> None:
    cli.end_on_sigterm()
    command, texts = _command(argv[1:])
    args = flags.FLAGS
    if not args.model:
        raise cli.UsageError("--model is missing: the directory or checkpoint of a BERT")
    cpu_allocator.keep_freed_memory()
    cpu_allocator.wait_for_each_program()
    # This loads JAX, and comes after the checks.
    import bert_jax

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: _warn(str(message))
        bert = bert_jax.load(args.model, args.step)
        for note in bert.notes:
            _warn(note)
        command.run(bert, texts)


def _command(words: list[str]) -> tuple[Command, list[str]]:
    """Returns the command that the words name, and its texts; checks all flags."""
    known = ", ".join(COMMANDS)
    if not words:
        raise cli.UsageError(f"a command is missing after the flags: one of {known}")
    name, *texts = words
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {near[0]}?" if near else f"it must be one of {known}"
        raise cli.UsageError(f"there is no command {name!r}; {hint}")
    command = COMMANDS[name]
    least = sum(not text.startswith("[") for text in command.texts)
    most = math.inf if command.texts[-1:] == (_MORE,) else len(command.texts)
    if not least <= len(texts) <= most:
        wanted = " ".join(text if text[0] == "[" else text.upper() for text in command.texts)
        raise cli.UsageError(
            f"{name} takes {wanted or 'no texts'} but was given {len(texts)}; put texts in quotes"
        )
    args = flags.FLAGS
    for flag in sorted({flag for c in COMMANDS.values() for flag in c.flags}):
        if args[flag].present and flag not in command.flags:
            raise cli.UsageError(f"--{flag} has no effect on {name}; leave it out")
    for flag in command.required:
        if not args[flag].value:
            raise cli.UsageError(f"--{flag} is missing; see python -m bert_jax.predict --help")
    return command, texts


def _plain(guesses: list["Guess"]) -> list[dict[str, Any]]:
    return [{"token": guess.token, "probability": guess.probability} for guess in guesses]


def _print_json(values: dict[str, Any]) -> None:
    # ASCII escapes are for terminals with a limited encoding.
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(values, ensure_ascii=not is_unicode))


def _print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    table = Table()
    # In a plain str, rich would read [MASK] as markup.
    table.add_column(Text(header[0]))
    for name in header[1:]:
        table.add_column(Text(name), justify="right")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def _warn(sentence: str) -> None:
    print(f"warning: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    define_flags()
    cli.run(main, words=True)
