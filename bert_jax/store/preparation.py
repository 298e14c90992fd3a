"""Turns text into a token store: sentences, vocabulary, tokens.

The written bytes do not depend on the number of processes. A store is complete once `metadata.json`
exists.
"""

import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import Progress, say
from bert_jax.store import preparation_report, record_store
from bert_jax.store.heldout import HeldOutText, choose
from bert_jax.store.manifest import (
    SPLIT_FILES,
    STORE_FILES,
    check_metadata,
    empty_directory,
    given_tokenizer,
    open_corpus,
    store_options,
    tokenizer_options,
)
from bert_jax.store.token_store import (
    SplitWriter,
    TokenStore,
    read_metadata,
    store_path,
    write_metadata,
)
from bert_jax.store.tokenization import (
    SentenceRules,
    TokenizedDocument,
    num_cores,
    tokenize_documents,
)
from bert_jax.store.vocabulary_sample import DocumentSample
from bert_jax.text.bad_records import BadRecord, skipped_texts
from bert_jax.text.corpus import Corpus, Document
from bert_jax.text.sentences import LANGUAGES
from bert_jax.text.sources import BUILT_IN, TFDS_PREFIX, join_inputs, split_inputs

# The value of data.input for the text on standard input.
STANDARD_INPUT = "-"
# The most text that a vocabulary is trained on. Frequencies hardly change with more text, but
# the trainers need more memory.
VOCABULARY_SAMPLE_BYTES = {"wordpiece": 2**26, "sentencepiece": 2**24, "byte_bpe": 2**26}
# The text of the sample of `prepare`, which is tokenized in about a second, and the fewest
# documents in it.
_SAMPLE_CHARACTERS, _SAMPLE_DOCUMENTS = 2**18, 8


def prepare(
    data: ConfigDict,
    vocab_size: int,
    output: str | os.PathLike,
    check_sample: Callable[[TokenStore, tokenizers.Tokenizer], None] | None = None,
) -> dict[str, Any]:
    """Writes a token store, or a `RecordStore` of TFRecord files, unless it is finished already.

    Args:
      data: The `data` section of a checked config.
      vocab_size: The number of entries; the vocabulary of `data.vocab` must have as many.
      output: The directory of the store; an unfinished store in it is replaced.
      check_sample: Called with a store of the beginning of the text and its tokenizer, before the
        whole text is tokenized. It may raise UserError.

    Returns:
      The store's metadata.

    Raises:
      UserError: The corpus, the options or the directory cannot be used.
    """
    output = store_path(output)
    is_static = data.format == record_store.FORMAT
    non_files = [i for i in split_inputs(data.input) if i == BUILT_IN or i.startswith(TFDS_PREFIX)]
    if is_static and non_files:
        raise UserError(
            f"data.input is {non_files[0]!r}, but with data.format={data.format} it must "
            "be globs of TFRecord files"
        )
    if (output / "metadata.json").exists():
        metadata = read_metadata(output)
        check_metadata(metadata, output, data, vocab_size)
        return metadata
    options = store_options(data, vocab_size)
    is_piped = split_inputs(data.input) == [STANDARD_INPUT]
    corpus = None if is_piped else open_corpus(data)
    if data.language and data.language not in LANGUAGES:
        say(
            f"warning: data.language is {data.language!r}, which has no rules of its own: those of "
            "a related language or of English are used (the languages with rules: "
            f"{', '.join(LANGUAGES)})"
        )
    with (
        empty_directory(output, STORE_FILES),
        files.local_output(output, last=("metadata.json",)) as local,
        _standard_input(data, local) if is_piped else nullcontext(corpus) as corpus,
    ):
        heldout = choose(corpus.documents(), 0 if is_static else data.heldout_fraction)
        if heldout.num_documents is not None:
            _check_number(heldout.num_documents, data.rows, corpus)
            say(heldout.description)
        tokenizer = _make_tokenizer(data, vocab_size, corpus, heldout)
        tokenizer.save(local / "tokenizer")
        report: dict[str, Any] = {}
        if is_static:
            # This import loads TensorFlow, which takes seconds.
            from bert_jax.store.google_tfrecord import write_rows

            rows = write_rows(corpus.sources, tokenizer, local)
            splits = {"train": {"records": rows}}
        else:
            if check_sample:
                with tempfile.TemporaryDirectory() as scratch:
                    size = tokenizer.vocab_size
                    sample = _sample(data, corpus, local / "tokenizer", size, scratch)
                    if sample.num_documents:
                        check_sample(sample, tokenizer)
            counts: Counter[str] = Counter()
            marked = heldout.mark(corpus.documents())
            documents = _tokenized(data, corpus, marked, local / "tokenizer", counts)
            splits = _write_splits(documents, corpus, data, tokenizer.vocab_size, local)
            if data.heldout_fraction and "heldout" not in splits:
                say("warning: the text is too short to hold out any of it for evaluation")
            formats = Counter((guess.format, guess.reason) for guess in corpus.guesses.values())
            report = {"formats": [[*guess, files] for guess, files in formats.items()], **counts}
            if heldout.end_fraction:
                report["heldout"] = "ends"
            preparation_report.show(corpus.guesses, counts, data, tokenizer.special_tokens.unk)
        metadata = {
            "tokenizer": {"kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint},
            "vocab_size": tokenizer.vocab_size,
            "splits": splits,
            "dropped_documents": dict(sorted(corpus.bad.dropped.items())),
            "first_dropped": corpus.bad.first_dropped,
            "options": options,
            "sources": corpus.sources,
        }
        if report:
            metadata["report"] = report
        write_metadata(local, metadata)
    return read_metadata(output)


@contextmanager
def _standard_input(data: ConfigDict, local: Path) -> Iterator[Corpus]:
    """Yields the corpus of the text on standard input, copied to a temporary file in `local`.

    Training a vocabulary and tokenizing both read the text from its beginning.
    """
    path = local / "standard_input.txt"
    try:
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        data = data.copy_and_resolve_references()
        data.input = (join_inputs([str(path)]),)
        yield open_corpus(data)
    finally:
        path.unlink(missing_ok=True)


def tokenize_corpus(
    data: ConfigDict, tokenizer: tokenizers.Tokenizer, output_dir: str | os.PathLike
) -> dict[str, Any]:
    """Writes all of `data.input` as one split, with nothing held out.

    Args:
      data: As in `prepare`; the tokenizer's keys are ignored.
      output_dir: The directory of the split, for `TokenStore`; an old split is replaced.

    Returns:
      The split's counts, and under "dropped_documents" the bad documents by reason.

    Raises:
      UserError: As for `prepare`.
    """
    output_dir = store_path(output_dir)
    corpus = open_corpus(data)
    with (
        tempfile.TemporaryDirectory() as tokenizer_dir,
        empty_directory(output_dir, SPLIT_FILES),
        files.local_output(output_dir) as local,
        SplitWriter(local, tokenizer.vocab_size) as split,
    ):
        tokenizer.save(tokenizer_dir)
        read = corpus.documents()
        for document in _tokenized(data, corpus, read, Path(tokenizer_dir), Counter()):
            _append(split, document)
        _check_number(split.counts["documents"], data.rows, corpus)
    for text in skipped_texts(corpus.bad.dropped, corpus.bad.first_dropped):
        say(f"warning: {text}")
    return {**split.counts, "dropped_documents": dict(corpus.bad.dropped)}


def _make_tokenizer(
    data: ConfigDict, vocab_size: int, corpus: Corpus, heldout: HeldOutText
) -> tokenizers.Tokenizer:
    if data.vocab:
        return given_tokenizer(data, vocab_size)
    sample = DocumentSample(VOCABULARY_SAMPLE_BYTES[data.tokenizer])
    with _reading(corpus, "reading for the vocabulary") as (progress, advance):
        index = -1
        for index, document in enumerate(heldout.mark(corpus.documents())):
            if not document.is_heldout:
                sample.offer(index, document)
            advance()
        _check_number(index + 1, data.rows, corpus)
        progress.message(f"training a {data.tokenizer} vocabulary of {vocab_size} entries")
        tokenizer = tokenizers.train(
            data.tokenizer,
            sample.sentences(data.language),
            vocab_size=vocab_size,
            sentencepiece_type=data.sentencepiece_type,
            **tokenizer_options(data),
        )
        if tokenizer.num_unused:
            progress.message(
                f"{tokenizer.num_unused:,} of the {vocab_size:,} entries are [unusedN]: all "
                "characters of the text have entries, and it has no more pieces that occur twice"
            )
    return tokenizer


def _write_splits(
    documents: Iterator[TokenizedDocument],
    corpus: Corpus,
    data: ConfigDict,
    vocab_size: int,
    output: Path,
) -> dict[str, dict[str, int]]:
    """Writes train/ and heldout/; returns their counts."""
    first_heldout: TokenizedDocument | None = None
    heldout: SplitWriter | None = None
    rows = data.rows
    with ExitStack() as stack:

        def open_heldout() -> SplitWriter:
            split = stack.enter_context(SplitWriter(output / "heldout", vocab_size))
            _append(split, first_heldout)
            return split

        train = stack.enter_context(SplitWriter(output / "train", vocab_size))
        for document in documents:
            if not document.is_heldout:
                _append(train, document)
            elif first_heldout is None:
                first_heldout = document
            else:
                heldout = heldout or open_heldout()
                _append(heldout, document)
        if first_heldout and heldout is None:
            if train.counts["documents"] == 1:
                heldout = open_heldout()
            else:
                # The evaluation of pairs needs a second document.
                _append(train, first_heldout)
    splits = {"train": train.counts} | ({"heldout": heldout.counts} if heldout else {})
    total = sum(counts["documents"] for counts in splits.values())
    _check_number(total, rows, corpus)
    if train.counts["documents"] < 2 and rows == "pairs":
        raise UserError(
            f"data.heldout_fraction={data.heldout_fraction} leaves 1 of {total} documents "
            "to train on: set it to 0"
        )
    return splits


def _sample(
    data: ConfigDict, corpus: Corpus, tokenizer_dir: Path, vocab_size: int, directory: str
) -> TokenStore:
    """Writes a store of the beginning of the text."""
    size, limit = 0, _SAMPLE_CHARACTERS // _SAMPLE_DOCUMENTS
    beginnings = (document._replace(text=document.text[:limit]) for document in corpus.documents())
    with SplitWriter(directory, vocab_size) as split:
        for document in tokenize_documents(beginnings, tokenizer_dir, 1, _rules(data)):
            if document.tokens.size:
                _append(split, document)
            size += document.counts["characters"]
            if size >= _SAMPLE_CHARACTERS:
                break
    return TokenStore(directory)


def _append(split: SplitWriter, document: TokenizedDocument) -> None:
    split.append(
        document.tokens, document.sentence_lengths, document.num_bytes, document.begins_word
    )


def _tokenized(
    data: ConfigDict,
    corpus: Corpus,
    documents: Iterator[Document],
    tokenizer_dir: Path,
    counts: Counter[str],
) -> Iterator[TokenizedDocument]:
    """Yields the tokenized documents of a corpus; drops those without a token.

    The counts of each document are added to `counts`.
    """
    processes = data.num_processes or num_cores()
    with (
        _reading(corpus, "tokenizing") as (_, advance),
        closing(tokenize_documents(documents, tokenizer_dir, processes, _rules(data))) as tokenized,
    ):
        for document in tokenized:
            advance()
            counts.update(document.counts)
            if document.tokens.size:
                yield document
            else:
                where = f"{document.source}:{document.line}"
                corpus.bad.add(BadRecord("empty", "the document has no text"), where)


def _rules(data: ConfigDict) -> SentenceRules:
    return SentenceRules(data.language, data.max_sentence_tokens, data.word_boundaries)


@contextmanager
def _reading(corpus: Corpus, name: str) -> Iterator[tuple[Progress, Callable[[], None]]]:
    """Yields the progress bar for reading a corpus, and a function that updates it."""
    total = corpus.fetch()
    with Progress(name, total, corpus.unit) as progress:
        shown = 0.0

        def advance(least: float = 100 if corpus.unit == "documents" else 0.1) -> None:
            nonlocal shown
            if (done := corpus.done) - shown >= least:
                progress.advance(done - shown, None if total else f"{done:,} documents")
                shown = done

        yield progress, advance
        advance(0)


def _check_number(documents: int, rows: str, corpus: Corpus) -> None:
    if documents == 0:
        raise UserError("the input has no document with text in it")
    if documents == 1 and rows == "pairs":
        read = remedy = ""
        for guess in list(corpus.guesses.values())[:1]:
            read = f" (read as data.format={guess.format}: {guess.reason})"
            if guess.format == "documents":
                remedy = "set data.format=sentences if it has a sentence per line, "
        # About forty parts, of which one or more are held out.
        size = sum(source.get("bytes", 0) for source in corpus.sources)
        raise UserError(
            f"the input has a single document{read}, but data.rows=pairs needs sentences of "
            f"another document: give it two or more, {remedy}or divide this document with "
            f"data.max_document_characters={min(20_000, size // 40 + 1)}"
        )
