"""The stages of a preparation: functions of one part of the input, whose results are files.

`run_part` is all that an engine calls. The text and the tokens of a part are read and written where
it runs. A user's mistake is a result too, so that no engine tries the same part again and again.

    count      the sizes of the documents
    sample     the sentences of the documents that the vocabulary is made from
    tokenize   the tokens of the part, train/N and heldout/N
"""

import contextlib
import errno
import itertools
import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.hashes import stable_hash
from bert_jax.store.heldout import HeldOut, HeldOutText, is_held_out_by_id
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
from bert_jax.store.texts import open_corpus
from bert_jax.store.token_store import SPLITS, store_path
from bert_jax.store.tokenization import TokenizedDocument, document_sentences, tokenize_documents
from bert_jax.text.bad_records import BadRecord
from bert_jax.text.corpus import Corpus, Document


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

    def heldout(self) -> tuple[HeldOutText, int]:
        """Returns what is held out, and the index of the first document in its source."""
        heldout, name = read_file(self.output, "heldout.json"), self.plan.source_name(self.number)
        text = heldout_text(heldout["sources"][name], self.data.heldout_fraction)
        return text, heldout["first_documents"][self.number]

    def marked(self) -> Iterator[Document]:
        """Yields the documents with the held-out text marked, without copies of earlier ones."""
        text, first = self.heldout()
        copies = set()
        if self.data.duplicates == "exact":
            copies.update(read_file(self.output, result_name("copies", self.number))["documents"])
        for number, document in enumerate(self.documents()):
            if number in copies:
                self.corpus.bad.drop("duplicate", document.place)
            else:
                yield from text.mark([document], first + number)


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
        write_file(output, name, STAGES[stage](part))
    except UserError as error:
        write_error(output, name, str(error))


def heldout_text(heldout: dict[str, Any], fraction: float) -> HeldOutText:
    """Returns the choice that heldout.json describes for a source."""
    if heldout["by_id"]:
        return HeldOutText((), id_fraction=fraction)
    documents = heldout["documents"]
    chosen = HeldOut(fraction) if documents is None else documents
    return HeldOutText(chosen, heldout["end_fraction"])


def _count(part: _Part) -> dict[str, Any]:
    result: dict[str, list] = {"characters": [], "bytes": [], "is_heldout": [], "hashes": []}
    fraction = part.data.heldout_fraction if part.data.heldout_by == "id" else 0
    for document in part.documents():
        result["characters"].append(len(document.text))
        result["bytes"].append(len(document.text.encode()))
        if fraction:
            result["is_heldout"].append(is_held_out_by_id(document, fraction))
        if part.data.duplicates == "exact":
            text = " ".join(document.text.split())
            text_hash = stable_hash(text.lower() if part.data.lowercase else text)
            result["hashes"].append(text_hash)
    return result


def _sample(part: _Part) -> dict[str, Any]:
    sample = read_file(part.output, "sample.json")
    chosen, first_chosen = Counter(sample["chosen"]), sample["first_documents"][part.number]
    text, first = part.heldout()
    path = part.output / UNFINISHED / f"{result_name('sample', part.number)}l"
    with files.new_file(path) as file:
        for number, document in enumerate(part.documents()):
            if copies := chosen[first_chosen + number]:
                pieces = text.mark([document], first + number)
                sentences = itertools.chain.from_iterable(
                    document_sentences(piece, part.data.language)
                    for piece in pieces
                    if not piece.is_heldout
                )
                lines = b"".join(json.dumps(sentence).encode() + b"\n" for sentence in sentences)
                file.write(lines * copies)
    return {}


def _tokenize(part: _Part) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    name = part_name(part.number) if part.plan.has_parts else ""
    paths = {split: Path(split, name) for split in SPLITS}
    vocab_size = read_file(part.output, "vocabulary.json")["vocab_size"]
    with (
        files.local_copy(part.output / "tokenizer") as tokenizer,
        _new_directories(part, list(paths.values())) as directory,
        ExitStack() as stack,
    ):
        writers: dict[str, SplitWriter] = {}
        for document in tokenized(
            part.corpus, part.marked(), tokenizer, part.num_processes, part.data, counts
        ):
            split = SPLITS[document.is_heldout]
            if split not in writers:
                writer = SplitWriter(directory / paths[split], vocab_size)
                writers[split] = stack.enter_context(writer)
            append(writers[split], document)
    return {
        "splits": {split: writer.counts for split, writer in writers.items()},
        "counts": counts,
        "guesses": part.corpus.guesses,
        "dropped": part.corpus.bad.dropped,
        "first_dropped": part.corpus.bad.first_dropped,
    }


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
