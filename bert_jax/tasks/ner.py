"""A tag for each word: named entities (the paper's section 5.3), or plain tags."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tasks import ner_tags
from bert_jax.tasks.scores import class_scores, class_table
from bert_jax.tasks.task import Task, split_files
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.named_sources import split_inputs
from bert_jax.text.readers import read_text, suffix_of
from bert_jax.text.tables import classes_of, read_rows
from bert_jax.tokenizers import Tokenizer, TokenRow

# Files with these suffixes are in CoNLL's format, and those with the next two may be.
_CONLL_SUFFIXES = (".conll", ".bio", ".iob")
_PLAIN_SUFFIXES = (".txt", ".tsv")
_OBJECT_SUFFIXES = (".jsonl", ".json", ".parquet", ".arrow")
# The names of words and tags in JSON and tables.
WORD_FIELDS = ("tokens", "words")
_TAG_FIELDS = ("ner_tags", "ner", "tags", "pos_tags", "upos")
_DOCUMENT_START = "-DOCSTART-"
# The label of positions that are not scored.
UNSCORED = -1


class TaggedSentence(NamedTuple):
    """The words of a sentence.

    Attributes:
      where: The position of each word, FILE:LINE.
      tags: The tag of each word; None if they are not known.
      document: The number of the document in its file.
    """

    where: list[str]
    words: list[str]
    tags: list[str | None] | None
    document: int = 0


class TaggedRows(TokenRows):
    """Rows of `[CLS] pieces of the words [SEP]`; see `TokenRows`.

    A sentence that is too long is split into windows that overlap by half or more, each starting
    at a word. A word has its label only in the window where the shorter of its left and right
    contexts is longest.

    Args:
      sentences: The words of each sentence; a word without pieces becomes [UNK].
      labels: The labels of all words of all sentences in one sequence; None if not known.
      tags: The tags of each sentence; None if they are not known or not needed.
      documents: The number of each sentence's document, of which neighbors fill its row; None for
        rows of single sentences.

    Attributes:
      words, tags: As given.
      word_row_W, word_position_W: The row and the position of the label of each word of all
        sentences.
    """

    PER_TOKEN = (*TokenRows.PER_TOKEN, "labels")

    def __init__(
        self,
        sentences: Sequence[Sequence[str]],
        labels: Sequence[int] | None,
        tokenizer: Tokenizer,
        max_seq_length: int,
        tags: Sequence[Sequence[str]] | None = None,
        documents: Sequence[int] | None = None,
    ):
        self.words, self.tags = sentences, tags
        offset = len(tokenizer.template.before)
        room = max_seq_length - tokenizer.template.num_special(is_pair=False)
        rows: list[int] = []
        positions: list[int] = []

        def windows() -> Iterator[TokenRow]:
            number = 0
            for pieces, first_pieces_W in _in_context(sentences, documents, tokenizer, room):
                starts_R = _window_starts(first_pieces_W, room)
                stops_R = np.minimum(starts_R + room, len(pieces))
                left_WxR = first_pieces_W[:, None] - starts_R
                right_WxR = stops_R - 1 - first_pieces_W[:, None]
                # The first of equally good windows.
                best_W = np.argmax(np.minimum(left_WxR, right_WxR), axis=1)
                rows.extend((number + best_W).tolist())
                positions.extend((offset + first_pieces_W - starts_R[best_W]).tolist())
                number += len(starts_R)
                for start, stop in zip(starts_R, stops_R, strict=True):
                    yield tokenizer.join(pieces[start:stop])

        super().__init__(windows(), tokenizer, max_seq_length)
        self.word_row_W = np.array(rows, np.int64)
        self.word_position_W = np.array(positions, np.int64)
        self._labels_W = None if labels is None else np.array(labels, np.int32)
        # Words are in the order of their rows.
        self._word_starts = np.searchsorted(self.word_row_W, np.arange(len(self) + 1))

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        batch = super().take(indices)
        if self._labels_W is not None:
            batch["labels"] = np.full(batch["input_ids"].shape, UNSCORED, np.int32)
            for n, i in enumerate(indices):
                words = slice(*self._word_starts[[i, i + 1]])
                batch["labels"][n, self.word_position_W[words]] = self._labels_W[words]
        return batch

    def fingerprint_texts(self) -> Iterator[str]:
        for words in self.words:
            yield from words


def _in_context(
    sentences: Sequence[Sequence[str]],
    documents: Sequence[int] | None,
    tokenizer: Tokenizer,
    room: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the pieces of each sentence's row, and the index of the first piece of its words.

    Neighbors in its document fill the row, with half of the room on each side as far as they go.
    """
    numbers = range(len(sentences)) if documents is None else documents
    for _, group in itertools.groupby(zip(numbers, sentences, strict=True), lambda item: item[0]):
        found = [_pieces(words, tokenizer, " " * (i > 0)) for i, (_, words) in enumerate(group)]
        document = np.concatenate([pieces for pieces, _ in found])
        stop = 0
        for pieces, first_pieces_W in found:
            start, stop = stop, stop + len(pieces)
            if len(pieces) > room:
                yield pieces, first_pieces_W
                continue
            begin = start - (room - len(pieces)) // 2
            begin = max(0, min(begin, len(document) - room))
            yield document[begin : begin + room], first_pieces_W + start - begin


def _pieces(
    words: Sequence[str], tokenizer: Tokenizer, before: str
) -> tuple[np.ndarray, np.ndarray]:
    """Tokenizes a sentence: its pieces, and the index of the first piece of each word."""
    unknown = np.array([tokenizer.unk_id], np.int32)
    # In some vocabularies a piece includes the space before it.
    spaced = [before + words[0], *(f" {word}" for word in words[1:])]
    ids = [word if word.size else unknown for word in tokenizer.encode_batch(spaced)]
    ends = np.cumsum([len(word) for word in ids])
    return np.concatenate(ids), np.concatenate([[0], ends[:-1]])


def _window_starts(first_pieces_W: np.ndarray, room: int) -> np.ndarray:
    """Chooses the pieces at which windows start. Each word's first piece is in a window."""
    starts = [0]
    while starts[-1] + room <= first_pieces_W[-1]:
        # The last word within half a window, or else the next word.
        current = np.searchsorted(first_pieces_W, starts[-1])
        middle = np.searchsorted(first_pieces_W, starts[-1] + room // 2, side="right") - 1
        starts.append(int(first_pieces_W[max(current + 1, middle)]))
    return np.array(starts)


class NerTask(Task):
    """Named entities or plain tags; see `Task`. Labels and predictions of entities are in IOB2.

    The tags of a file may be IOB1, IOB2, IOBES or BILOU: they mean the entities that seqeval finds.

    A file has one word per line with its tag in the last column, and a blank line after each
    sentence. Columns are separated by tabs, or by spaces in a line without tabs. Lines that
    begin with -DOCSTART- are ignored. JSON lines, Parquet and Arrow have a sentence in each row,
    with lists of `tokens` and `ner_tags`, as `datasets` exports them.

    Args:
      source: A folder with train, dev (or valid, val, validation) and test, each .conll, .txt,
        .tsv, .bio, .iob, .jsonl, .json, .parquet or .arrow, or CoNLL-2003's own eng.train,
        eng.testa, eng.testb; or files, "train=FILE,validation=FILE,test=FILE".
    """

    head = "token_classification"
    file_names = split_files(
        *(suffix[1:] for suffix in (*_CONLL_SUFFIXES, *_PLAIN_SUFFIXES, *_OBJECT_SUFFIXES)),
        train=("eng.train",),
        validation=("eng.testa",),
        test=("eng.testb",),
    )

    @property
    def has_entities(self) -> bool:
        """Whether tags mark entities; otherwise each is a label of its own."""
        return not self._options["plain_tags"]

    @property
    def metric(self) -> str:
        return "f1" if self.has_entities else "accuracy"

    def find_labels(self) -> tuple[str, ...]:
        types = split_inputs(self._options["types"])
        if not types:
            read = (
                self.sentences(self.sources[split], split, self.new_bad_rows())
                for split in self.parts or ("train",)
            )
            tags = {tag for sentence in itertools.chain(*read) for tag in sentence.tags}
            if self.has_entities:
                tags = {tag.partition("-")[2] for tag in tags} - {""}
            types = sorted(tags)
        if not types:
            raise UserError("the training set of config.data.input has no tags except O")
        if not self.has_entities:
            return self._in_stored_order(dict.fromkeys(types))
        tags = (f"{prefix}-{type_}" for type_ in dict.fromkeys(types) for prefix in "BI")
        return self._in_stored_order((ner_tags.OUTSIDE, *tags))

    def _in_stored_order(self, labels: Iterable[str]) -> tuple[str, ...]:
        """Sorts labels like the classes that `datasets` stores, so that they keep their numbers."""
        stored = classes_of(self.sources["train"])
        names = next((stored[name] for name in _TAG_FIELDS if name in stored), ())
        # Other tags, such as S-PER, are no labels.
        is_iob2 = all(name[:2] in ("B-", "I-", ner_tags.OUTSIDE) for name in names)
        is_theirs = {*names} >= {*labels} and (is_iob2 or not self.has_entities)
        return tuple(names if is_theirs and not self._options["types"] else labels)

    def read(self, source: epath.Path, split: str, bad_rows: BadRecords) -> TaggedRows:
        sentences = self.sentences(source, split, bad_rows)
        labels = tags = None
        if sentences[0].tags is not None:
            tags = [sentence.tags for sentence in sentences]
            index = {label: i for i, label in enumerate(self.labels)}
            # A test set may have types that are not among the labels.
            labels = [index.get(tag, -1) for tag in itertools.chain(*tags)]
        words = [sentence.words for sentence in sentences]
        documents = [sentence.document for sentence in sentences]
        documents = documents if self._options["document_context"] else None
        return TaggedRows(words, labels, self._tokenizer, self._max_seq_length, tags, documents)

    def score(self, rows: TaggedRows, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """See `ner_tags.score`; for plain tags, `scores.class_scores`."""
        if self.has_entities:
            return ner_tags.score(rows.tags, self._predictions(rows, outputs))
        # A label less than the classes: the last is that of tags of a test set that are no labels.
        return class_scores(*self._classes(rows, outputs), len(self.labels) + 1)

    def class_table(self, rows: TaggedRows, outputs: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        if self.has_entities:
            return []
        return class_table(*self._classes(rows, outputs), (*self.labels, "other tags"))[:-1]

    def class_counts(self) -> dict[str, int]:
        """Counts the training entities of each type, or the words of each plain tag."""
        tags = Counter(itertools.chain(*self.rows("train").tags))
        if not self.has_entities:
            return {label: tags[label] for label in self.labels}
        return {label[2:]: tags[label] for label in self.labels if label.startswith("B-")}

    def write_predictions(
        self, rows: TaggedRows, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes words, correct tags if known, and predicted tags, separated by tabs.

        A blank line follows each sentence. `conlleval -d '\\t'` and this task can read the file.
        """
        lines = []
        columns = (rows.words, rows.tags, self._predictions(rows, outputs))
        for sentence in zip(*(column for column in columns if column is not None), strict=True):
            lines += [*map("\t".join, zip(*sentence, strict=True)), ""]
        files.write_whole(path, "\n".join([*lines, ""]).encode())

    def predictions_name(self, split: str) -> str:
        return f"{split}_predictions.conll"

    def _classes(
        self, rows: TaggedRows, outputs: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the right and the predicted label of each word, int64 [W]."""
        index = {label: i for i, label in enumerate(self.labels)}
        right = [index.get(tag, len(index)) for tag in itertools.chain(*rows.tags)]
        predicted = [index[tag] for tag in itertools.chain(*self._predictions(rows, outputs))]
        return np.array(right), np.array(predicted)

    def _predictions(self, rows: TaggedRows, outputs: dict[str, np.ndarray]) -> list[list[str]]:
        best_W = outputs["logits"][rows.word_row_W, rows.word_position_W].argmax(axis=-1)
        tags = [self.labels[i] for i in best_W]
        ends = np.cumsum([0, *map(len, rows.words)])
        return [tags[a:b] for a, b in pairwise(ends)]

    def sentences(
        self, source: epath.Path, split: str, bad_rows: BadRecords
    ) -> list[TaggedSentence]:
        """Reads sentences and converts their tags to IOB2; see `read` for the arguments."""
        is_test = split.startswith("test")
        # Unless the options name the types, any type of the training data is valid.
        gives_types = not self._options["types"] and split in (self.parts or ("train",))
        sentences = []
        # The context of a sentence is in the same split.
        whole = {"group": lambda sentence: sentence.document}
        options = whole if self._options["document_context"] else {}
        for sentence in self.part(split, read_file(source, bad_rows), **options):
            tags = []
            try:
                for word in zip(*sentence[:3], strict=True):
                    tags.append(self._tag(*word[1:], is_test, gives_types))
            except BadRecord as bad:
                bad_rows.add(bad, word[0])
            else:
                sentences.append(sentence._replace(tags=tags))
        self.check_not_empty(source, split, sentences)
        # The tags of a test set are used if all of its words have one.
        if any(None in sentence.tags for sentence in sentences):
            return [sentence._replace(tags=None) for sentence in sentences]
        if not self.has_entities:
            return sentences
        return [sentence._replace(tags=ner_tags.in_iob2(sentence.tags)) for sentence in sentences]

    def _tag(self, word: str, spelling: str | None, is_test: bool, gives_types: bool) -> str | None:
        """Returns the tag of a word, which is not checked in a test set; None if it has none."""
        if not word:
            raise BadRecord("missing column", "the first column, the word, is empty")
        tag = ner_tags.parse(spelling or "") if self.has_entities else spelling
        if is_test:
            return tag
        if not spelling:
            raise BadRecord(
                "missing column", "the word has no tag (a column after it, or `ner_tags`)"
            )
        if not tag:
            raise BadRecord(
                "unknown tag",
                f"the tag is {spelling!r}; it must be O, or B, I, E or S followed by -TYPE (for "
                "other tags, such as parts of speech: --config.ner.plain_tags=True)",
            )
        # Each type has two labels, B-TYPE and I-TYPE.
        label = f"I-{tag[2:]}" if self.has_entities and tag != ner_tags.OUTSIDE else tag
        if not gives_types and label not in self.labels:
            known = ", ".join(self.labels)[:300]
            raise BadRecord("unknown tag", f"the tag {tag!r} is not one of the labels {known}")
        return tag


def read_file(path: Any, bad_rows: BadRecords) -> Iterator[TaggedSentence]:
    """Yields the sentences of a file, with the tags as it spells them."""
    if suffix_of(path) in _OBJECT_SUFFIXES:
        yield from _read_objects(path, bad_rows)
        return
    where: list[str] = []
    cells: list[list[str]] = []
    document = 0
    for number, line in enumerate([*read_text(path).split("\n"), ""], 1):
        line = line.rstrip("\r")
        if line.strip() and not line.startswith(_DOCUMENT_START):
            where.append(f"{path}:{number}")
            cells.append(_columns(line))
        elif where:
            tags = [row[-1] if len(row) > 1 else None for row in cells]
            yield TaggedSentence(where, [row[0] for row in cells], tags, document)
            where, cells = [], []
        document += line.startswith(_DOCUMENT_START)


def is_conll(path: Any) -> bool:
    """Returns whether a file is in CoNLL's format, not a text or a table.

    If its name does not tell, each line that is not blank must have a tag in its last column.
    """
    suffix = suffix_of(path)
    if suffix not in _PLAIN_SUFFIXES:
        return suffix in _CONLL_SUFFIXES
    lines = (line.rstrip("\r") for line in read_text(path).split("\n"))
    rows = [_columns(line) for line in lines if line.strip() and line[:10] != _DOCUMENT_START]
    return bool(rows) and all(len(row) > 1 and ner_tags.parse(row[-1]) for row in rows)


def _columns(line: str) -> list[str]:
    if "\t" in line:
        return [cell.strip(" ") for cell in line.split("\t")]
    return [cell for cell in line.split(" ") if cell]


def _read_objects(path: Any, bad_rows: BadRecords) -> Iterator[TaggedSentence]:
    """Reads lists of words and tags; a test set may lack the tags."""
    document = 0
    for where, _, values in read_rows(path, (), bad_rows):
        # A missing list is an empty text.
        words, tags = (
            next((values[name] or [] for name in names if name in values), None)
            for names in (WORD_FIELDS, _TAG_FIELDS)
        )
        are_lists = isinstance(words, list) and isinstance(tags or [], list)
        if are_lists and tags and isinstance(tags[0], int):
            raise UserError(
                f"{where}: its tags are numbers, whose names are not in the file; write the "
                "names, such as B-PER"
            )
        texts = [*words, *(tags or words)] if are_lists else []
        is_read = are_lists and len(texts) == 2 * len(words)
        if not is_read or not all(isinstance(text, str) for text in texts):
            detail = "it must have a list `tokens` and a list `ner_tags` of as many tags, all texts"
            bad_rows.add(BadRecord("another form", detail), where)
            continue
        document += words[:1] in ([], [_DOCUMENT_START])
        if words:
            names = [f"{where}, word {number}" for number in range(1, len(words) + 1)]
            yield TaggedSentence(names, words, tags or [None] * len(words), document)
