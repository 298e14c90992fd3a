"""Turns text into a token store: sentences, vocabulary, tokens.

    python -m bert_jax.prepare --input='texts/*.txt' --output=DIR
    python -m bert_jax.main --config=configs/base.py --workdir=RUN --config.data.store=DIR

`bert_jax.main` does the same in its work directory if a run names no store. --preview=N prints the
first N documents as they would be divided into sentences, and writes nothing. --verify compares the
files of a finished store with the checksums that were written with them.

A large store is prepared in parts: by the processes of one machine, or by Apache Beam
(--runner=NAME, and the runner's flags after --). If they are killed, the same command continues.
"""

import itertools
import shlex
import time
from typing import Any

from absl import flags
from ml_collections import ConfigDict
from rich.table import Table

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say, terminal
from bert_jax.batches import corpus_report
from bert_jax.batches.stream import Stream, StreamSpec
from bert_jax.config import cli, default_config, validate_data
from bert_jax.config.checks import check_rules, exponent_rule
from bert_jax.config.command_line import UsageError
from bert_jax.config.data import DATA
from bert_jax.store.engines import beam_runner
from bert_jax.store.manifest import RECORDED, check_case, given_tokenizer, say_skipped
from bert_jax.store.preparation import prepare
from bert_jax.store.preparation_report import show_formats
from bert_jax.store.texts import open_corpus
from bert_jax.store.token_store import TokenStore, read_metadata, store_path, verify_store
from bert_jax.store.tokenization import document_sentences
from bert_jax.tokenizers.extension import extended_size

# The sentences of a document that --preview prints, and the characters of each.
_SHOWN_SENTENCES = 20
_SHOWN_CHARACTERS = 300
# The keys of `config.data` that are flags.
_KEYS = [*RECORDED, "sources", "num_processes", "rows", "max_pairs_per_row"]


def define_flags() -> None:
    """Defines the flags of the command: the keys of `config.data` and its own."""
    define = {
        bool: flags.DEFINE_boolean,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }
    data = default_config().data
    for key in _KEYS:
        default = ",".join(data[key]) if isinstance(data[key], tuple) else data[key]
        define[type(default)](key, default, DATA[key].comment)
    flags.DEFINE_string("output", None, "Directory of the token store.")
    flags.DEFINE_boolean(
        "report",
        False,
        "Also print what fraction of the text is in rows, and of rows is padding (--rows, "
        "--max_seq_length, --max_pairs_per_row). They do not affect the store.",
    )
    flags.DEFINE_boolean(
        "verify", False, "Only compare the files of the finished store --output with its checksums."
    )
    flags.DEFINE_integer(
        "preview",
        None,
        "Only print this number of documents, divided into sentences (tokens with --vocab).",
        lower_bound=1,
    )
    flags.DEFINE_integer("max_seq_length", 128, "Length of the rows of --report.", lower_bound=8)
    flags.DEFINE_string(
        "runner",
        None,
        "Runner of Apache Beam that does the work, such as DataflowRunner; its flags follow --.",
    )
    flags.DEFINE_integer(
        "vocab_size",
        None,
        "Tokens in the vocabulary; by default as in the given vocabulary, or "
        f"{default_config().model.vocab_size} to train.",
    )


def main(arguments: list[str]) -> None:
    values = flags.FLAGS
    if arguments[1:] and not values.runner:
        raise UsageError(f"unexpected argument {arguments[1]!r}: flags are written --NAME=VALUE")
    if not (values.output or values.preview):
        raise UserError("--output=DIR is missing: the directory of the token store")
    if values.verify:
        number = verify_store(values.output)
        say(f"{number:,} files of {values.output} have the checksums that were written with them")
        return
    config = default_config()
    data = config.data
    for key in _KEYS:
        value = values[key].value
        data[key] = tuple(filter(None, [value])) if isinstance(data[key], tuple) else value
    validate_data(data)
    if values["sampling_exponent"].present:
        check_rules([exponent_rule(config)], config)
    if values.preview:
        _print_documents(data, values.preview)
        return
    files.checked_path(values.output, "--output")
    is_finished = (store_path(values.output) / "metadata.json").exists()
    if data.vocab and not is_finished and not values["lowercase"].present:
        check_case(data)
    started = time.monotonic()
    vocab_size = _vocab_size(data, values.vocab_size, values.output)
    # By default, the processes of this machine do the work.
    engine = beam_runner(values.runner, arguments[1:]) if values.runner else None
    metadata = prepare(data, vocab_size, values.output, engine=engine)
    seconds = None if is_finished else time.monotonic() - started
    _print_summary(metadata, values.output, seconds)
    if values.report:
        _print_report(metadata, values.output, values.max_seq_length, data)
    print(
        "next: python -m bert_jax.main --config=configs/tiny.py --workdir=DIR "
        f"--config.data.store={shlex.quote(values.output)}"
    )


def _print_documents(data: ConfigDict, number: int) -> None:
    """Prints the first documents of the input as sentences, or tokens if there is a vocabulary."""
    tokenizer = given_tokenizer(data) if data.vocab else None
    corpus = open_corpus(data)
    for document in itertools.islice(corpus.documents(), number):
        language = data.language or document.language
        sentences = document_sentences(document, data.language)
        if tokenizer:
            ids = tokenizer.encode_batch(sentences)
            sentences = [" ".join(tokenizer.tokens[i] for i in sentence) for sentence in ids]
        sentences = list(filter(None, map(str.strip, sentences)))
        rules_of = f", rules of {language!r}" if language else ""
        noun = "sentence" if len(sentences) == 1 else "sentences"
        say(f"{document.place}: {len(sentences):,} {noun}{rules_of}")
        for sentence in sentences[:_SHOWN_SENTENCES]:
            more = len(sentence) - _SHOWN_CHARACTERS
            rest = f"... ({more:,} more)" if more > 0 else ""
            say(f"    {sentence[:_SHOWN_CHARACTERS]}{rest}")
        if sentences[_SHOWN_SENTENCES:]:
            print(f"    ... and {len(sentences) - _SHOWN_SENTENCES:,} more")
    show_formats(corpus.guesses)
    say_skipped(corpus.bad.dropped, corpus.bad.first_dropped)


def _vocab_size(data: ConfigDict, requested: int | None, output: str) -> int:
    if requested is not None or not data.vocab:
        return requested if requested is not None else default_config().model.vocab_size
    # The vocabulary of a finished store may no longer exist elsewhere.
    if (store_path(output) / "metadata.json").exists():
        return read_metadata(output)["vocab_size"]
    tokenizer = given_tokenizer(data)
    return extended_size(tokenizer, data.add_tokens) if data.add_tokens else tokenizer.vocab_size


def _print_summary(metadata: dict[str, Any], output: str, seconds: float | None) -> None:
    """Prints the sizes; `seconds` is None for a store from earlier."""
    table = Table("split", "documents", "sentences", "tokens", "MB of text")
    for name, counts in metadata["splits"].items():
        numbers = [f"{counts[key]:,}" for key in ("documents", "sentences", "tokens")]
        table.add_row(name, *numbers, f"{counts['bytes_of_text'] / 1e6:,.1f}")
    terminal().print(table)
    say_skipped(metadata["dropped_documents"], metadata["first_dropped"])
    splits = metadata["splits"].values()
    speed = "finished earlier; "
    if seconds is not None:
        tokens = sum(s["tokens"] for s in splits) / seconds
        megabytes = sum(s["bytes_of_text"] for s in splits) / 1e6 / seconds
        speed = f"{seconds:.1f} s, {tokens:,.0f} tokens/s, {megabytes:.2f} MB/s in all; "
    say(f"{speed}vocabulary of {metadata['vocab_size']:,}; the token store is in {output}")


def _print_report(
    metadata: dict[str, Any], output: str, max_seq_length: int, data: ConfigDict
) -> None:
    sizes = {"max_seq_length": max_seq_length, "max_predictions_per_seq": 1, "batch_size": 1}
    spec = StreamSpec.of(data, **sizes, seed=0, stage=0)
    path = store_path(output)
    stream = Stream(TokenStore(path / "train"), tokenizers.load(path / "tokenizer"), spec)
    reports = [corpus_report.measure(stream, num_rows_read=0, metadata=metadata)]
    terminal().print(corpus_report.table(reports))
    if sources := corpus_report.source_table(reports):
        terminal().print(sources)
    for warning in corpus_report.warnings(reports):
        say(f"warning: {warning}")


if __name__ == "__main__":
    define_flags()
    cli.run(main, words=True)
