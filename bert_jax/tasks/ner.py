"""Named entities: a tag for each word (the paper's section 5.3)."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.data import tfds_source
from bert_jax.data.bad_records import BadRecord
from bert_jax.data.text_files import read_text
from bert_jax.errors import UserError
from bert_jax.tasks import ner_tags, sources
from bert_jax.tasks.ner_rows import TaggedRows
from bert_jax.tasks.task import Task
from bert_jax.tokenizers import Tokenizer

_SUFFIXES = ("conll", "txt", "tsv", "bio", "iob")
_FILES = {
    split: (*(f"{name}.{suffix}" for name in names for suffix in _SUFFIXES), original)
    for split, names, original in (
        ("train", ("train",), "eng.train"),
        ("validation", ("dev", "valid", "validation"), "eng.testa"),
        ("test", ("test",), "eng.testb"),
    )
}
_TFDS_SPLITS = {"train": ("train",), "validation": ("validation", "dev"), "test": ("test",)}
# The names of the tags in the data sets.
_TFDS_FIELDS = ("ner", "tags")
_DOCUMENT_START = "-DOCSTART-"


class TaggedSentence(NamedTuple):
    """The words of a sentence.

    Attributes:
      where: The place of each word, FILE:LINE.
      words: At least one.
      tags: The tag of each word; None if they are not known.
    """

    where: list[str]
    words: list[str]
    tags: list[str | None] | None


class NerTask(Task):
    """See `Task`. All tags are converted to IOB2: the labels and the predictions.

    A file has one word per line with its tag in the last column, and a blank line after each
    sentence. Columns are separated by tabs, or by spaces in a line without tabs. Lines that
    begin with -DOCSTART- are ignored.

    Args:
      source: A folder with train, dev (or valid, validation) and test, each .conll, .txt, .tsv,
        .bio or .iob, or CoNLL-2003's own eng.train, eng.testa, eng.testb; files,
        "train=FILE,validation=FILE,test=FILE"; or tfds:conll2003, tfds:wikiann/en and the like.
      scheme: The scheme of the tags: "iob1", "iob2" or "iobes" (also BILOU), or "auto" for the
        one that the training set is in.
      types: The entity types in the order of the labels; empty for those of the training set,
        sorted.
      max_seq_length: Longer sentences become several rows.
      bad_rows: "refuse"; or "skip", which leaves out sentences with unreadable lines and
        repairs tags that do not follow from the ones before, as seqeval reads them.

    Raises:
      UserError: The data do not exist, no type is known, or the training set has bad lines.
    """

    name = "ner"
    head = "token_classification"
    metric = "f1"

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        scheme: str = "auto",
        types: Sequence[str] = (),
        max_seq_length: int = 128,
        bad_rows: str = "refuse",
    ):
        self._tokenizer, self._length, self._scheme = tokenizer, max_seq_length, scheme
        self._repair = bad_rows == "skip"
        self._builder: Any = None
        if source.startswith(tfds_source.TFDS_PREFIX):
            self._builder = tfds_source.open_downloaded(source)
            known = self._builder.info.splits
            self._sources = {
                split: name
                for split, names in _TFDS_SPLITS.items()
                for name in names
                if name in known
            }
        else:
            self._sources = sources.find_files(source, _FILES)
        super().__init__(tuple(split for split in _FILES if split in self._sources), bad_rows)
        self._sentences: dict[str, list[TaggedSentence]] = {}
        types = sources.split_names(types) or self._types_of_training()
        tags = (f"{prefix}-{type_}" for type_ in dict.fromkeys(types) for prefix in "BI")
        self.labels = (ner_tags.OUTSIDE, *tags)

    def read_rows(self, split: str) -> TaggedRows:
        sentences = self.sentences(split)
        labels = None
        if sentences[0].tags is not None:
            index = {label: i for i, label in enumerate(self.labels)}
            # A test set may have types that the model does not know.
            labels = [index.get(tag, -1) for sentence in sentences for tag in sentence.tags or ()]
        words = [sentence.words for sentence in sentences]
        return TaggedRows(words, labels, self._tokenizer, self._length)

    def score(self, split: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """See `ner_tags.score`."""
        tags = [sentence.tags for sentence in self.sentences(split)]
        if tags[0] is None:
            raise UserError(f"the {split} sentences of config.data.input have no tags")
        return ner_tags.score(tags, self._predictions(split, outputs))

    def write_predictions(
        self, split: str, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes words, right tags if they are known, and predicted tags, separated by tabs.

        A blank line follows each sentence. `conlleval -d '\\t'` and this task can read the file.
        """
        lines = []
        predictions = self._predictions(split, outputs)
        for sentence, tags in zip(self.sentences(split), predictions, strict=True):
            columns = (sentence.words, sentence.tags, tags)
            rows = zip(*(column for column in columns if column is not None), strict=True)
            lines += [*map("\t".join, rows), ""]
        path = files.open_path(path, "the file of predictions")
        files.write_whole(path, "\n".join([*lines, ""]).encode())

    def predictions_name(self, split: str) -> str:
        return f"{split}_predictions.conll"

    def sentences(self, split: str) -> list[TaggedSentence]:
        """Returns the sentences of a split with their tags in IOB2."""
        if split not in self._sentences:
            sentences = self._read(split, is_test=split.startswith("test"))
            if not sentences:
                raise UserError(
                    f"config.data.input: the {split} split ({self._sources[split]}) has no "
                    "sentence that can be used"
                )
            self._sentences[split] = sentences
        return self._sentences[split]

    def _predictions(self, split: str, outputs: dict[str, np.ndarray]) -> list[list[str]]:
        """Returns the predicted tags of each sentence."""
        rows = self.rows(split)
        best_W = outputs["logits"][rows.word_row_W, rows.word_position_W].argmax(axis=-1)
        tags = [self.labels[i] for i in best_W]
        ends = np.cumsum([0, *(len(sentence.words) for sentence in self.sentences(split))])
        return [tags[a:b] for a, b in pairwise(ends)]

    def _types_of_training(self) -> list[str]:
        if "train" not in self.splits:
            raise UserError(
                "config.data.input has no training set that could name the types: set "
                "config.ner.types"
            )
        tags = {tag for sentence in self.sentences("train") for tag in sentence.tags or ()}
        types = sorted({tag.partition("-")[2] for tag in tags} - {""})
        if not types:
            raise UserError("the training set of config.data.input has no tag but O")
        return types

    def _read(self, split: str, is_test: bool) -> list[TaggedSentence]:
        source = self._sources[split]
        read = _read_tfds(self._builder, source) if self._builder else _read_file(source)
        checked = (self._checked(sentence, is_test) for sentence in read)
        sentences = [sentence for sentence in checked if sentence]
        # A test set is scored if all of its words have a tag.
        if any(None in sentence.tags for sentence in sentences):
            return [sentence._replace(tags=None) for sentence in sentences]
        if self._scheme == "auto":
            self._scheme = ner_tags.scheme_of(s.tags for s in sentences)
        sentences = [self._in_iob2(sentence, is_test) for sentence in sentences]
        if not is_test and self.labels:
            sentences = [sentence for sentence in sentences if self._is_known(sentence)]
        return sentences

    def _checked(self, sentence: TaggedSentence, is_test: bool) -> TaggedSentence | None:
        """Returns the sentence with parsed tags; None if it is bad and skipped."""
        tags = [ner_tags.parse(tag) if tag else None for tag in sentence.tags]
        words = zip(sentence.where, sentence.words, sentence.tags, tags, strict=True)
        for where, word, given, tag in words:
            bad = None
            if not word:
                bad = BadRecord("missing column", "the first column, the word, is empty")
            elif not is_test and not given:
                bad = BadRecord(
                    "missing column", "there is a word, but no tag in a column after it"
                )
            elif not is_test and not tag:
                detail = f"the tag is {given!r}, not O, or one of B, I, E, S with -TYPE after it"
                bad = BadRecord("unknown tag", detail)
            if bad:
                self._bad_rows.add(bad, where, must_stay=is_test)
                return None
        return sentence._replace(tags=tags)

    def _in_iob2(self, sentence: TaggedSentence, is_test: bool) -> TaggedSentence:
        """Refuses or repairs tags that are not of the scheme. Those of a test set are read."""
        tags, length = sentence.tags, len(sentence.words)
        found = ner_tags.entities(tags)
        expected = ner_tags.tags_of(found, length, self._scheme)
        wrong = [w for w in range(length) if not is_test and tags[w] != expected[w]]
        if wrong and not self._repair:
            raise UserError(
                f"{sentence.where[wrong[0]]}: the tag is {tags[wrong[0]]}, but after the tags "
                f"before it {self._scheme.upper()} has {expected[wrong[0]]} "
                "(--config.data.bad_rows=skip repairs it)"
            )
        if wrong:
            self.dropped["inconsistent tag, repaired"] += len(wrong)
        return sentence._replace(tags=ner_tags.tags_of(found, length, "iob2"))

    def _is_known(self, sentence: TaggedSentence) -> bool:
        """Returns whether all tags are labels; a sentence with another is a bad one."""
        for where, tag in zip(sentence.where, sentence.tags, strict=True):
            if tag not in self.labels:
                known = ", ".join(label[2:] for label in self.labels[1::2])
                bad = BadRecord("unknown type", f"the type of {tag} is not one of {known}")
                self._bad_rows.add(bad, where)
                return False
        return True


def _read_file(path: Any) -> Iterator[TaggedSentence]:
    where: list[str] = []
    cells: list[list[str]] = []
    for number, line in enumerate([*read_text(path).split("\n"), ""], 1):
        line = line.rstrip("\r")
        if line.strip() and not line.startswith(_DOCUMENT_START):
            where.append(f"{path}:{number}")
            if "\t" in line:
                cells.append([cell.strip(" ") for cell in line.split("\t")])
            else:
                cells.append([cell for cell in line.split(" ") if cell])
        elif where:
            tags = [row[-1] if len(row) > 1 else None for row in cells]
            yield TaggedSentence(where, [row[0] for row in cells], tags)
            where, cells = [], []


def _read_tfds(builder: Any, split: str) -> Iterator[TaggedSentence]:
    """Reads conll2003, wikiann/en and the like."""
    features, full_name = builder.info.features, builder.info.full_name
    field = next((name for name in _TFDS_FIELDS if name in features), None)
    if field is None or "tokens" not in features:
        raise UserError(
            f"config.data.input: {full_name} has no `tokens` with "
            + " or ".join(f"`{name}`" for name in _TFDS_FIELDS)
        )
    names = features[field].feature.names
    for number, example in enumerate(tfds_source.examples(builder, split), 1):
        words = [word.decode() for word in example["tokens"]]
        where = [f"{full_name} {split}:{number}, word {w + 1}" for w in range(len(words))]
        if words:
            yield TaggedSentence(where, words, [names[int(tag)] for tag in example[field]])
