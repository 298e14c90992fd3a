"""Sentences of tagged words: CoNLL's files and TensorFlow Datasets'."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath

from bert_jax.errors import UserError
from bert_jax.tasks import sources
from bert_jax.tasks.ner_tags import parse
from bert_jax.tasks.sentence_rows import BadRows

_DOCUMENT_START = "-DOCSTART-"
# What the data sets call the tags.
_TFDS_FIELDS = ("ner", "tags")


class Sentence(NamedTuple):
    """One sentence.

    Attributes:
      where: Of each word, FILE:LINE.
      words: At least one.
      tags: As many, `parse`d; None where they are not known.
    """

    where: list[str]
    words: list[str]
    tags: list[str] | None


def read_file(path: Path | epath.Path, bad_rows: BadRows, *, labelled: bool) -> list[Sentence]:
    """Reads a word a line, its tag in the last column, a blank line after each sentence.

    Columns are separated by tabs, or in a line that has none by spaces. Lines that begin with
    -DOCSTART- are passed over.

    Args:
      path: The file.
      bad_rows: What is done with a sentence that has a bad line.
      labelled: Whether tags must be there. If they need not, as in a test set, they are taken
        for known if all lines have one.

    Raises:
      UserError: the file cannot be read, or has no sentence, or a bad one.
    """
    sentences = []
    for lines in _blocks(sources.read_text(path)):
        where = [f"{path}:{number}" for number, _ in lines]
        columns = [_columns(line) for _, line in lines]
        sentence = _checked(
            where,
            [cells[0] for cells in columns],
            [cells[-1] if len(cells) > 1 else None for cells in columns],
            bad_rows,
            labelled,
        )
        if sentence:
            sentences.append(sentence)
    return _all_or_none(sentences, str(path), labelled)


def read_tfds(builder: Any, split: str, bad_rows: BadRows, *, labelled: bool) -> list[Sentence]:
    """Reads a split of conll2003, wikiann/en and the like; see `read_file`."""
    features = builder.info.features
    field = next((name for name in _TFDS_FIELDS if name in features), None)
    if field is None or "tokens" not in features:
        raise UserError(
            f"config.data.input: {builder.info.full_name} has no `tokens` with "
            + " or ".join(f"`{name}`" for name in _TFDS_FIELDS)
        )
    names = features[field].feature.names
    sentences = []
    for number, example in enumerate(sources.tfds_examples(builder, split), 1):
        words = [word.decode() for word in example["tokens"]]
        where = [
            f"{builder.info.full_name} {split}:{number}, word {w + 1}" for w in range(len(words))
        ]
        tags = [names[int(tag)] for tag in example[field]]
        sentence = _checked(where, words, tags, bad_rows, labelled) if words else None
        if sentence:
            sentences.append(sentence)
    return _all_or_none(sentences, f"{builder.info.full_name} {split}", labelled)


def _blocks(text: str) -> Iterator[list[tuple[int, str]]]:
    """The lines of each sentence with their numbers."""
    block: list[tuple[int, str]] = []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        line = line.rstrip("\r")
        if line.strip() and not line.startswith(_DOCUMENT_START):
            block.append((number, line))
        elif block:
            yield block
            block = []


def _columns(line: str) -> list[str]:
    if "\t" in line:
        return [cell.strip(" ") for cell in line.split("\t")]
    return [cell for cell in line.split(" ") if cell]


def _checked(
    where: list[str],
    words: list[str],
    tags: list[str | None],
    bad_rows: BadRows,
    labelled: bool,
) -> Sentence | None:
    """None of a bad sentence that is left out."""
    parsed = [parse(tag) if tag else None for tag in tags]
    for place, word, tag, known in zip(where, words, tags, parsed, strict=True):
        reason, detail = "", ""
        if not word:
            reason, detail = "missing column", "the first column, the word, is empty"
        elif labelled and not tag:
            reason, detail = "missing column", "there is a word, but no tag in a column after it"
        elif labelled and not known:
            reason = "unknown tag"
            detail = f"the tag is {tag!r}, not O, or one of B, I, E, S with -TYPE after it"
        if reason:
            bad_rows.bad(reason, place, detail, must_stay=not labelled)
            return None
    return Sentence(where, words, None if None in parsed else parsed)


def _all_or_none(sentences: list[Sentence], source: str, labelled: bool) -> list[Sentence]:
    if not sentences:
        raise UserError(f"{source}: there is no sentence that can be used")
    if not labelled and any(sentence.tags is None for sentence in sentences):
        return [sentence._replace(tags=None) for sentence in sentences]
    return sentences
