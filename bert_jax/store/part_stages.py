"""The stages of a preparation: functions of one part of the input, whose results are files.

`run_part` is all that an engine calls. The text and the tokens of a part are read and written where
it runs. A user's mistake is a result too, so that no engine tries the same part again and again.

    count      the sizes of the documents (`Counted`)
    sample     the sentences of the documents that the vocabulary is made from
    tokenize   the tokens of the part, train/N and heldout/N (`Tokenized`)

After `count`, one process chooses what the others do with each document (`choices`).
"""

import contextlib
import errno
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.hashes import stable_hash
from bert_jax.store.choices import Counted, choice
from bert_jax.store.heldout import HeldOutText, is_held_out_by_id
from bert_jax.store.plan import (
    UNFINISHED,
    Directory,
    Plan,
    read_plan,
    read_record,
    result_name,
    write_error,
    write_record,
)
from bert_jax.store.split_writer import SplitWriter
from bert_jax.store.texts import open_corpus
from bert_jax.store.token_store import SPLITS, store_path
from bert_jax.store.tokenization import TokenizedDocument, document_sentences, tokenize_documents
from bert_jax.text.bad_records import BadRecord
from bert_jax.text.corpus import Corpus, Document
from bert_jax.text.guess_format import FormatGuess

VOCABULARY = "vocabulary.json"


class Vocabulary(NamedTuple):
    """The tokenizer of the store, once it is written."""

    kind: str
    fingerprint: str
    vocab_size: int
    unk: str
    words: dict[str, float]  # The mean tokens of a word, with and without data.add_tokens.


class Sampled(NamedTuple):
    """What the vocabulary is made from."""

    sentences: list[str]


class Tokenized(NamedTuple):
    """The tokens of a part, and how its text was read."""

    splits: dict[str, dict[str, int]]  # `SplitWriter.counts` of each split with documents.
    counts: dict[str, int]  # The sums of `TokenizedDocument.counts`.
    guesses: dict[str, FormatGuess]
    dropped: dict[str, int]
    first_dropped: dict[str, list[str]]


class _Part(NamedTuple):
    """One part of the input, as the stages see it."""

    output: Directory
    plan: Plan
    number: int
    corpus: Corpus
    data: ConfigDict
    num_processes: int

    def documents(self) -> Iterator[Document]:
        return self.corpus.documents(self.plan.parts[self.number])

    def marked(self) -> Iterator[Document]:
        """Yields the documents with the held-out text marked, without copies of earlier ones."""
        chosen = choice(self.output, self.number)
        heldout = HeldOutText(set(chosen.heldout), chosen.end_fraction)
        copies = set(chosen.copies)
        for number, document in enumerate(self.documents()):
            if number in copies:
                self.corpus.bad.drop("duplicate", document.place)
            else:
                yield from heldout.divide(number, document)


def run_part(
    output: str | os.PathLike,
    stage: str,
    number: int,
    num_processes: int = 1,
    advance: Callable[[float], None] | None = None,
) -> None:
    """Writes the result of a stage for one part; a user's mistake is written too, not raised.

    Args:
      num_processes: The number of processes that tokenize, which does not affect the result.
    """
    output, name = store_path(output), result_name(stage, number)
    plan = read_plan(output)
    data = ConfigDict(plan.data)
    try:
        corpus = open_corpus(data, plan.sources)
        corpus.advance = advance or corpus.advance
        part = _Part(output, plan, number, corpus, data, num_processes)
        write_record(output, name, STAGES[stage](part))
    except UserError as error:
        write_error(output, name, str(error))


def _count(part: _Part) -> Counted:
    result = Counted([], [], [], [])
    fraction = part.data.heldout_fraction if part.data.heldout_by == "id" else 0
    for number, document in enumerate(part.documents()):
        result.characters.append(len(document.text))
        result.num_bytes.append(len(document.text.encode()))
        if fraction and is_held_out_by_id(document, fraction):
            result.heldout.append(number)
        # Copies have the same words; with data.lowercase, in any case.
        if part.data.duplicates == "exact":
            text = " ".join(document.text.split())
            text_hash = stable_hash(text.lower() if part.data.lowercase else text)
            result.hashes.append(text_hash)
    return result


def _sample(part: _Part) -> Sampled:
    chosen = choice(part.output, part.number)
    times, result = Counter(chosen.sample), Sampled([])
    # A document of the sample is not held out whole.
    heldout = HeldOutText((), chosen.end_fraction)
    for number, document in enumerate(part.documents()):
        if times[number]:
            begin = heldout.divide(number, document)[0]
            sentences = document_sentences(begin, part.data.language)
            result.sentences.extend(sentences * times[number])
    return result


def _tokenize(part: _Part) -> Tokenized:
    counts: Counter[str] = Counter()
    name = part_name(part.number) if part.plan.has_parts else ""
    paths = {split: Path(split, name) for split in SPLITS}
    vocab_size = read_record(part.output, VOCABULARY, Vocabulary).vocab_size
    with (
        files.local_copy(part.output / "tokenizer") as tokenizer,
        _new_directories(part, list(paths.values())) as directory,
        ExitStack() as stack,
    ):
        writers: dict[str, SplitWriter] = {}
        for document in tokenized(
            part.corpus, part.marked(), tokenizer, part.num_processes, part.data, counts
        ):
            split = "heldout" if document.is_heldout else "train"
            if split not in writers:
                writer = SplitWriter(directory / paths[split], vocab_size)
                writers[split] = stack.enter_context(writer)
            append(writers[split], document)
    splits = {split: writer.counts for split, writer in writers.items()}
    bad = part.corpus.bad
    return Tokenized(splits, counts, part.corpus.guesses, bad.dropped, bad.first_dropped)


STAGES = {"count": _count, "sample": _sample, "tokenize": _tokenize}
# The titles of their progress bars.
TITLES = {
    "count": "counting documents",
    "sample": "reading for the vocabulary",
    "tokenize": "tokenizing",
}


def tokenized(
    corpus: Corpus,
    documents: Iterable[Document],
    tokenizer_dir: Path,
    num_processes: int,
    data: ConfigDict,
    counts: Counter[str],
) -> Iterator[TokenizedDocument]:
    """Yields the tokenized documents of a corpus; drops those without a token.

    The counts of each document are added to `counts`.
    """
    rules = data.language, data.word_boundaries
    with contextlib.closing(
        tokenize_documents(documents, tokenizer_dir, num_processes, rules)
    ) as results:
        for document in results:
            counts.update(document.counts)
            if document.tokens.size:
                yield document
            else:
                corpus.bad.add(BadRecord("empty", "the document has no text"), document.place)


def append(split: SplitWriter, document: TokenizedDocument) -> None:
    split.append(
        document.tokens, document.sentence_lengths, document.num_bytes, document.begins_word
    )


def part_name(number: int) -> str:
    return f"{number:05d}"


@contextlib.contextmanager
def _new_directories(part: _Part, names: list[Path]) -> Iterator[Path]:
    """Yields a local directory, whose directories `names` appear in the store when the block ends.

    On a disk they are renamed into place. If another attempt was faster, its directories are kept,
    which have the same bytes. In a bucket they are complete once the result of the stage exists.
    """
    if files.is_remote(part.output):
        with files.local_output(part.output) as local:
            yield local
        return
    scratch = part.output / UNFINISHED / f"{part.number:05d}-{secrets.token_hex(4)}"
    scratch.mkdir()
    try:
        yield scratch
        for name in names:
            source, target = scratch / name, part.output / name
            if source.exists():
                _sync(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    source.rename(target)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sync(directory: Path) -> None:
    for path in filter(Path.is_file, directory.rglob("*")):
        with path.open("rb") as file:
            os.fsync(file.fileno())
