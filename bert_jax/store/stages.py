"""The stages of a preparation: functions of one part of the input, whose results are files.

`run_part` is all that an engine calls. The text and the tokens of a part are read and written where
it runs. A user's mistake is a result too, so that no engine tries the same part again and again.

    count      the sizes of the documents
    ends       the same where the end of each document is held out
    sample     the sentences of the documents that the vocabulary is made from
    tokenize   the tokens of the part, train/N and heldout/N
    select     train/N and heldout/N without copies, see `bert_jax.store.duplicates`
"""

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.store import duplicates
from bert_jax.store.heldout import HeldOut, HeldOutText, is_held_out_by_id
from bert_jax.store.manifest import open_corpus
from bert_jax.store.plan import (
    UNFINISHED,
    Directory,
    Plan,
    read_file,
    read_plan,
    result_name,
    write_error,
    write_file,
)
from bert_jax.store.split_writer import SplitWriter
from bert_jax.store.token_store import SPLITS, store_path
from bert_jax.store.tokenization import (
    SentenceRules,
    TokenizedDocument,
    document_sentences,
    tokenize_documents,
)
from bert_jax.text.bad_records import BadRecord
from bert_jax.text.corpus import Corpus, Document


class _Part(NamedTuple):
    """One part of the input, as the stages see it.

    Attributes:
      output: The directory of the store.
      plan: The plan of the store.
      number: The number of the part.
      corpus: The whole input.
      data: The `data` section of the config.
      num_processes: The number of processes that tokenize the part.
      advance: Called with the amount read, in the corpus's unit.
    """

    output: Directory
    plan: Plan
    number: int
    corpus: Corpus
    data: ConfigDict
    num_processes: int
    advance: Callable[[float], None]

    def documents(self) -> Iterator[Document]:
        for document in self.corpus.documents(self.plan.parts[self.number]):
            self.advance(self.corpus.done)
            yield document
        self.advance(self.corpus.done)

    def marked(self) -> Iterator[Document]:
        """Yields the documents with the held-out text marked."""
        heldout, name = read_file(self.output, "heldout.json"), self.plan.source_name(self.number)
        text = heldout_text(heldout["sources"][name], self.data.heldout_fraction)
        return text.mark(self.documents(), heldout["first_documents"][self.number])


def run_part(
    output: str | os.PathLike,
    stage: str,
    number: int,
    num_processes: int = 1,
    advance: Callable[[float], None] = lambda _: None,
) -> None:
    """Writes the result of a stage for one part; a user's mistake is written too, not raised.

    Args:
      output: The directory of an unfinished store.
      stage: One of `STAGES`.
      number: The number of the part.
      num_processes: The number of processes that tokenize, which does not affect the result.
      advance: Called with the amount read, in MB or documents; see `Corpus.unit`.
    """
    output, name = store_path(output), result_name(stage, number)
    if (plan := read_plan(output)) is None:
        raise UserError(f"{output} holds no unfinished token store any more")
    data = ConfigDict(plan.data)
    try:
        corpus = open_corpus(data, plan.sources)
        part = _Part(output, plan, number, corpus, data, num_processes, advance)
        write_file(output, name, STAGES[stage].run(part))
    except UserError as error:
        write_error(output, name, str(error))
    except FileNotFoundError as error:
        # A file of the input has been removed.
        write_error(output, name, f"{error.filename or error}: {os.strerror(errno.ENOENT)}")


class _SplitWriters(dict[str, SplitWriter]):
    """Writers of the splits of a part, by name; each is opened when it is first used.

    Args:
      part: The part.
      directory: A local directory.
      paths: The directory of each split, relative to `directory`.
    """

    def __init__(self, part: _Part, directory: Path, paths: Mapping[str, Path]):
        super().__init__()
        self._vocab_size = read_file(part.output, "vocabulary.json")["vocab_size"]
        self._directory, self._paths, self._open = directory, paths, ExitStack()

    def __missing__(self, name: str) -> SplitWriter:
        writer = SplitWriter(self._directory / self._paths[name], self._vocab_size)
        self[name] = self._open.enter_context(writer)
        return writer

    def __enter__(self) -> "_SplitWriters":
        return self

    def __exit__(self, *exception) -> None:
        self._open.__exit__(*exception)


def heldout_text(heldout: dict[str, Any], fraction: float) -> HeldOutText:
    """Returns the choice that heldout.json describes for a source."""
    if heldout["by_id"]:
        return HeldOutText((), id_fraction=fraction)
    documents = heldout["documents"]
    chosen = HeldOut(fraction) if documents is None else documents
    return HeldOutText(chosen, heldout["end_fraction"])


def _count(part: _Part) -> dict[str, Any]:
    characters, sizes, is_heldout = [], [], []
    fraction = part.data.heldout_fraction if part.data.heldout_by == "id" else 0
    for document in part.documents():
        characters.append(len(document.text))
        sizes.append(len(document.text.encode()))
        if fraction:
            is_heldout.append(is_held_out_by_id(document, fraction))
    result = {"characters": characters, "bytes": sizes, "guesses": part.corpus.guesses}
    return result | ({"is_heldout": is_heldout} if fraction else {})


def _count_ends(part: _Part) -> dict[str, Any]:
    documents = [(len(d.text.encode()), d.is_heldout) for d in part.marked()]
    sizes, is_heldout = zip(*documents, strict=True) if documents else ((), ())
    return {"bytes": sizes, "is_heldout": is_heldout}


def _sample(part: _Part) -> dict[str, Any]:
    sample = read_file(part.output, "sample.json")
    chosen = Counter(sample["chosen"])
    path = part.output / UNFINISHED / f"{result_name('sample', part.number)}l"
    with files.new_file(path) as file:
        for index, document in enumerate(part.marked(), sample["first_documents"][part.number]):
            if index in chosen:
                sentences = document_sentences(document, part.data.language)
                lines = b"".join(json.dumps(text).encode() + b"\n" for text in sentences)
                file.write(lines * chosen[index])
    return {}


def _tokenize(part: _Part) -> dict[str, Any]:
    documents = None if part.data.duplicates == "keep" else duplicates.PartDocuments()
    counts: Counter[str] = Counter()
    splits = _final_splits(part)
    moved = list(splits.values())
    if documents:
        moved = [duplicates.part_path(Path(), part.number)]
        splits = {name: moved[0] / name for name in SPLITS}
    with (
        files.local_copy(part.output / "tokenizer") as tokenizer,
        _new_directories(part, moved) as directory,
    ):
        with _SplitWriters(part, directory, splits) as writers:
            for document in tokenized(
                *(part.corpus, part.marked(), tokenizer, part.num_processes, part.data, counts)
            ):
                append(writers[SPLITS[document.is_heldout]], document)
                if documents:
                    documents.append(document)
        sources = documents.write(directory / moved[0]) if documents else []
    return {
        "sources": sources,
        "splits": {name: writer.counts for name, writer in writers.items()},
        "counts": counts,
        "guesses": part.corpus.guesses,
        "dropped": part.corpus.bad.dropped,
        "first_dropped": part.corpus.bad.first_dropped,
    }


def _select(part: _Part) -> dict[str, Any]:
    splits = _final_splits(part)
    with (
        files.local_copy(duplicates.part_path(part.output, part.number)) as tokenized_part,
        _new_directories(part, list(splits.values())) as directory,
        _SplitWriters(part, directory, splits) as writers,
    ):
        result = read_file(part.output, result_name("tokenize", part.number))
        result = duplicates.select(part.output, tokenized_part, part.number, result, writers)
    part.advance(part.plan.megabytes(part.number))
    return result


class Stage(NamedTuple):
    """A stage.

    Attributes:
      run: Returns the content of the result of a part.
      title: The title of the progress bar.
    """

    run: Callable[[_Part], dict[str, Any]]
    title: str


STAGES = {
    "count": Stage(_count, "counting documents"),
    "ends": Stage(_count_ends, "counting documents"),
    "sample": Stage(_sample, "reading for the vocabulary"),
    "tokenize": Stage(_tokenize, "tokenizing"),
    "select": Stage(_select, "removing copies"),
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
    rules = sentence_rules(data)
    with contextlib.closing(
        tokenize_documents(documents, tokenizer_dir, num_processes, rules)
    ) as results:
        for document in results:
            counts.update(document.counts)
            if document.tokens.size:
                yield document
            else:
                corpus.bad.add(BadRecord("empty", "the document has no text"), document.place)


def sentence_rules(data: ConfigDict) -> SentenceRules:
    return SentenceRules(data.language, data.word_boundaries)


def append(split: SplitWriter, document: TokenizedDocument) -> None:
    """Adds a tokenized document to a split."""
    split.append(
        document.tokens, document.sentence_lengths, document.num_bytes, document.begins_word
    )


def part_directory(root: Directory, split: str, plan: Plan, number: int) -> Directory:
    """Returns the directory of a part of a split, or of the split if it has no parts."""
    return root / split / part_name(number) if plan.has_parts else root / split


def _final_splits(part: _Part) -> dict[str, Path]:
    """Returns the directory of the part of each split, relative to the store."""
    return {name: part_directory(Path(), name, part.plan, part.number) for name in SPLITS}


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
