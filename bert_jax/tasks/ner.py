"""Named entities: a tag for each word (the paper's section 5.3)."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.tasks import ner_tags, sources
from bert_jax.tasks.ner_data import Sentence, read_file, read_tfds
from bert_jax.tasks.ner_rows import TaggedRows
from bert_jax.tasks.sentence_rows import BadRows
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


class Ner:
    """See `bert_jax.tasks.task.Task`.

    All tags become IOB2's: those are the labels, and what is predicted.

    Args:
      source: A folder with train, dev (or valid, validation) and test, each .conll, .txt, .tsv,
        .bio or .iob, or CoNLL-2003's own eng.train, eng.testa, eng.testb; files as
        "train=FILE,validation=FILE,test=FILE"; or tfds:conll2003, tfds:wikiann/en and the like.
      scheme: What the tags are in: "iob1", "iob2" or "iobes" (BILOU too); "auto": what those
        of the training set are in.
      types: The entities' types in the order of the labels; empty: those of the training set,
        sorted.
      max_seq_length: Tokens of a row; longer sentences become several.
      bad_rows: "refuse"; or "skip": leave out sentences with lines that cannot be read, and
        read a tag that does not follow from the ones before as seqeval does.

    Raises:
      UserError: the data are not there or no type is known, or the training set has bad lines.
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
        sources.check_bad_rows(bad_rows)
        if scheme not in ("auto", *ner_tags.SCHEMES):
            raise UserError(
                f"config.ner.scheme is {scheme!r}, but it must be one of auto, "
                + ", ".join(ner_tags.SCHEMES)
            )
        self._tokenizer, self._length, self._scheme = tokenizer, max_seq_length, scheme
        self._repair, self._bad_rows = bad_rows == "skip", BadRows(bad_rows == "skip")
        self._files: dict[str, Path | epath.Path] = {}
        self._builder: Any = None
        if source.startswith(sources.TFDS_PREFIX):
            self._builder = sources.tfds_builder(source)
            there = self._builder.info.splits
            # conll2003 has a "dev".
            names = {"train": ["train"], "validation": ["validation", "dev"], "test": ["test"]}
            self._tfds_splits = {
                split: name for split, known in names.items() for name in known if name in there
            }
            self.splits = tuple(self._tfds_splits)
        else:
            self._files = sources.find_files(source, _FILES)
            self.splits = tuple(split for split in _FILES if split in self._files)
        self._sentences: dict[str, list[Sentence]] = {}
        self._rows: dict[str, TaggedRows] = {}
        self.labels: tuple[str, ...] = ()
        self.labels = _labels(sources.split_names(types) or self._types_of_training())

    @property
    def dropped(self) -> Counter[str]:
        """Sentences left out, and tags repaired, by reason, of the splits read so far."""
        return self._bad_rows.dropped

    def rows(self, split: str) -> TaggedRows:
        """All sentences of a split; the longest ones in several rows."""
        if split not in self._rows:
            sentences = self._read(split)
            labels = None
            if sentences[0].tags is not None:
                index = {label: i for i, label in enumerate(self.labels)}
                # A test set may have types that the model does not know.
                labels = [[index.get(tag, -1) for tag in s.tags or ()] for s in sentences]
            words = [sentence.words for sentence in sentences]
            self._rows[split] = TaggedRows(words, labels, self._tokenizer, self._length)
        return self._rows[split]

    def score(self, split: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """See `ner_tags.score`."""
        right = [sentence.tags for sentence in self._read(split)]
        if right[0] is None:
            raise UserError(f"the {split} sentences of config.data.input have no tags")
        return ner_tags.score(right, self._predictions(split, outputs))

    def write_predictions(
        self, split: str, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes words, right tags if they are known, and predicted tags, separated by tabs.

        A blank line follows each sentence. `conlleval -d '\\t'` reads it, and so does `Ner`.
        """
        lines = []
        predictions = self._predictions(split, outputs)
        for sentence, tags in zip(self._read(split), predictions, strict=True):
            columns = (sentence.words, sentence.tags, tags)
            rows = zip(*(column for column in columns if column is not None), strict=True)
            lines += [*map("\t".join, rows), ""]
        files.write_whole(
            files.open_path(path, "the predictions' file"), "\n".join([*lines, ""]).encode()
        )

    def predictions_name(self, split: str) -> str:
        """The name of the file that `write_predictions` is given for a split."""
        return f"{split}_predictions.conll"

    def _predictions(self, split: str, outputs: dict[str, np.ndarray]) -> list[list[str]]:
        """The tags of each sentence."""
        rows = self.rows(split)
        best_W = outputs["logits"][rows.word_row_W, rows.word_position_W].argmax(axis=-1)
        tags = [self.labels[i] for i in best_W]
        ends = np.cumsum([0, *(len(sentence.words) for sentence in self._read(split))])
        return [tags[a:b] for a, b in pairwise(ends)]

    def _types_of_training(self) -> list[str]:
        if "train" not in self.splits:
            raise UserError(
                "config.data.input has no training set, of whose types the labels are: set "
                "config.ner.types"
            )
        tags = {tag for sentence in self._read("train") for tag in sentence.tags or ()}
        types = sorted({tag.partition("-")[2] for tag in tags} - {""})
        if not types:
            raise UserError("the training set of config.data.input has no tag but O")
        return types

    def _read(self, split: str) -> list[Sentence]:
        """The sentences of a split, their tags in IOB2."""
        if split not in self._sentences:
            labelled = not split.startswith("test")
            if self._files:
                sentences = read_file(self._files[split], self._bad_rows, labelled=labelled)
            else:
                sentences = read_tfds(
                    self._builder, self._tfds_splits[split], self._bad_rows, labelled=labelled
                )
            if sentences[0].tags is not None:
                if self._scheme == "auto":
                    self._scheme = ner_tags.scheme_of(s.tags for s in sentences)
                sentences = [self._in_iob2(sentence, labelled) for sentence in sentences]
            if labelled and self.labels:
                sentences = [sentence for sentence in sentences if self._is_known(sentence)]
            if not sentences:
                raise UserError(f"the {split} split of config.data.input has no usable sentence")
            self._sentences[split] = sentences
        return self._sentences[split]

    def _in_iob2(self, sentence: Sentence, labelled: bool) -> Sentence:
        """Refuses or repairs tags that are not of the scheme; a test set's are just read."""
        tags, length = sentence.tags, len(sentence.words)
        found = ner_tags.entities(tags)
        expected = ner_tags.tags_of(found, length, self._scheme)
        wrong = [w for w in range(length) if labelled and tags[w] != expected[w]]
        if wrong and not self._repair:
            raise UserError(
                f"{sentence.where[wrong[0]]}: the tag is {tags[wrong[0]]}, but after those before "
                f"it {self._scheme.upper()} has {expected[wrong[0]]} "
                "(--config.data.bad_rows=skip reads it so)"
            )
        if wrong:
            self._bad_rows.dropped["inconsistent tag, repaired"] += len(wrong)
        return sentence._replace(tags=ner_tags.tags_of(found, length, "iob2"))

    def _is_known(self, sentence: Sentence) -> bool:
        """Whether all tags are labels; refuses the sentence, or counts it, if one is not."""
        for where, tag in zip(sentence.where, sentence.tags, strict=True):
            if tag not in self.labels:
                known = ", ".join(label[2:] for label in self.labels[1::2])
                detail = f"the type of {tag} is not one of {known}"
                self._bad_rows.bad("unknown type", where, detail)
                return False
        return True


def _labels(types: Sequence[str]) -> tuple[str, ...]:
    tags = (f"{prefix}-{type_}" for type_ in dict.fromkeys(types) for prefix in "BI")
    return (ner_tags.OUTSIDE, *tags)
