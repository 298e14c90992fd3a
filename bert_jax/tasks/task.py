"""The interface of fine-tuning tasks: rows, scores and predictions."""

import abc
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeVar

import numpy as np
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config.task_sections import TASK_SECTIONS
from bert_jax.store.heldout import HeldOut
from bert_jax.tasks.scores import Scores
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.text.bad_records import INVALID_UTF8, BadRecords
from bert_jax.text.folders import STATE, check_complete, data_files, pattern_of
from bert_jax.text.readers import COMPRESSIONS
from bert_jax.text.tables import files_of
from bert_jax.tokenizers import Tokenizer

# The usual names of the files of splits.
_STEMS = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}


def split_files(*suffixes: str, **original: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the names that the file of each split may have.

    Args:
      suffixes: Of the usual names, such as "train.jsonl", without the dot.
      original: The names in a released data set, by split.
    """
    return {
        split: (*original.get(split, ()), *(f"{stem}.{end}" for stem in stems for end in suffixes))
        for split, stems in _STEMS.items()
    }


def find_files(source: str, names: Mapping[str, Sequence[str]]) -> dict[str, epath.Path]:
    """Finds the file of each split, in the order of `names`.

    If there is no validation split, it gets the file of the training split, and `Task` gives each
    split a part of the examples.

    Args:
      source: The value of `data.input`: a folder, "SPLIT=FILE,SPLIT=FILE", or the file of the
        training split.
      names: The file names that each split may have in a folder.
    """
    is_named = re.match(r"\s*\w+\s*=", source)
    found = _named_files(source, names) if is_named else _folder_files(source, names)
    train = next((split for split in found if split.startswith("train")), None)
    if train is None:
        raise UserError(
            f"config.data.input is {source}, which has no train split ({', '.join(names['train'])})"
        )
    for path in found.values():
        if path.exists() and (pattern := pattern_of(path)) != path:
            say(f"warning: {path} is one of several files of its split, which are {pattern}")
    found.setdefault(next(split for split in names if split.startswith("validation")), found[train])
    return {split: found[split] for split in names if split in found}


def _folder_files(source: str, names: Mapping[str, Sequence[str]]) -> dict[str, epath.Path]:
    folder = files.checked_path(source, "config.data.input")
    if files_of(folder)[0].is_file():
        return {"train": folder}
    if not folder.is_dir():
        raise UserError(
            f"config.data.input is {source}, but there is no such folder or file; files are named "
            "as in train=FILE,validation=FILE"
        )
    found: dict[str, epath.Path] = {}
    for split, choices in names.items():
        existing = [path for name in choices for path in places(folder, name)]
        # The diagnostic set of GLUE may be in several folders; those are copies.
        if len(existing) > 1 and not any("/" in name for name in choices):
            first, second = (path.relative_to(folder) for path in existing[:2])
            raise UserError(
                f"config.data.input is {source}, in which both {first} and {second} may be the "
                f"{split} split, which is one file; name it, as in {split}={existing[0]}, with "
                "commas between splits, or join them in one file"
            )
        if existing:
            found[split] = existing[0]
    return found


def places(folder: epath.Path, name: str) -> list[epath.Path]:
    """Finds files by name, compressed or not, in a folder of the user, of `datasets` or the Hub.

    Several files of a split are one pattern; see `tables.files_of`.
    """
    stem, _, suffix = name.rpartition(".")
    found = [path for end in ("", *COMPRESSIONS) if (path := folder / f"{name}{end}").exists()]
    # `Dataset.save_to_disk` writes a split alone.
    own = ["data-"] if stem == "train" and (folder / STATE).exists() else []
    for start in (f"{stem}-", f"data/{stem}-", f"{stem}/data-", *own):
        place = (folder / start).parent
        listed = data_files([*folder.glob(f"{start}*-of-*.{suffix}"), *place.glob(STATE)])
        shards = [path for path in listed if path.name != STATE]
        check_complete(shards)
        found += dict.fromkeys(map(pattern_of, shards))
    return found


def _named_files(source: str, names: Mapping[str, Sequence[str]]) -> dict[str, epath.Path]:
    found: dict[str, epath.Path] = {}
    # A comma that is not followed by SPLIT= belongs to a file name.
    for item in re.split(r",(?=\s*\w+\s*=)", source):
        split, _, name = (part.strip() for part in item.partition("="))
        if split not in names or split in found:
            raise UserError(
                f"config.data.input has {item!r}, but each part must be SPLIT=FILE with a "
                f"different split out of {', '.join(names)}"
            )
        found[split] = files.checked_path(name, "config.data.input")
    return found


# The fraction of the training examples that is held out if there is no validation split.
VALIDATION_FRACTION = 0.1
T = TypeVar("T")


class Task(abc.ABC):
    """A task and its data. Most files are read when they are first needed.

    Args:
      config: A config of fine-tuning, of which a task reads `data` and its own section.
      source: The value of `config.data.input`; see `find_files`. Empty for a task that only
        reads and scores other sources.
      labels: The labels of an earlier run; by default `find_labels` gives them.

    Attributes:
      name: The value of `config.task`, such as "mrpc".
      head: The name of its head: a key of `heads.HEADS`, or MODULE:NAME. If it depends on the
        config, a task has its own `head_of`.
      is_scored_before: Whether the model is scored before training too, which may make it worse.
      labels: The label names in the order of the logits. Empty for regression and question
        answering.
      metric: The score that selects the best checkpoint. Higher is better.
      file_names: The names that the file of each split may have in a folder; see `split_files`.
      sources: The file of each split.
      splits: The names that `rows` accepts: "train", "validation", "test" or variants such as
        "validation_mismatched".
      settings: What predictions depend on beside the rows and the outputs, in words.
      parts: "train" and the validation split if both come from the training file, of whose
        examples a tenth are held out; otherwise empty.
    """

    head: str
    labels: tuple[str, ...] = ()
    metric: str
    settings: str = ""
    is_scored_before = False
    file_names: Mapping[str, Sequence[str]]

    def __init__(
        self, config: ConfigDict, source: str, tokenizer: Tokenizer, labels: tuple[str, ...] = ()
    ):
        self.name, self._tokenizer = config.task, tokenizer
        self.head = self.head_of(config)
        self._options = config[config.task] if config.task in TASK_SECTIONS else {}
        self._max_seq_length = config.data.max_seq_length
        self._bad_rows_policy, self._long_texts = config.data.bad_rows, config.data.long_texts
        self._bad_rows: dict[str, BadRecords] = {}
        self._rows: dict[str, TokenRows] = {}
        self.sources = self.open_sources(source) if source else {}
        self.splits = tuple(self.sources)
        train = self.sources.get("train")
        parts = tuple(split for split in self.splits if self.sources[split] is train)
        self.parts = parts if len(parts) > 1 else ()
        self.labels = labels or self.find_labels()

    @classmethod
    def head_of(cls, config: ConfigDict) -> str:
        """Returns the name of the head with a config."""
        return cls.head

    def open_sources(self, source: str) -> dict[str, epath.Path]:
        return find_files(source, self.file_names)

    def find_labels(self) -> tuple[str, ...]:
        """Finds the labels in the task's definition, its options or its training data."""
        return ()

    @property
    def scored_splits(self) -> list[str]:
        """The splits that are scored; the first decides which checkpoint is the best."""
        return [split for split in self.splits if split.startswith("validation")]

    @property
    def test_splits(self) -> list[str]:
        """The splits that are only predicted, whose labels no run reads."""
        return [split for split in self.splits if split.startswith("test")]

    @property
    def dropped(self) -> dict[str, Counter[str]]:
        """The number of skipped or repaired examples by split and reason, as read so far."""
        return {split: bad.dropped for split, bad in self._bad_rows.items() if bad.dropped}

    def new_bad_rows(self, split: str = "train") -> BadRecords:
        """Makes the object that handles the bad examples of a split. A test split must be whole."""
        advice = {INVALID_UTF8: "save the file as UTF-8 if it has another encoding"}
        if split.startswith("test"):
            return BadRecords(advice=advice)
        return BadRecords(self._bad_rows_policy, "config.data.bad_rows", advice)

    def rows(self, split: str) -> TokenRows:
        """Returns the examples of a split, which are read at the first call."""
        if split not in self._rows:
            bad_rows = self._bad_rows[split] = self.new_bad_rows(split)
            self._rows[split] = self.read(self.sources[split], split, bad_rows)
        return self._rows[split]

    def check(self, config: ConfigDict) -> list[str]:
        """Checks a completed config against the training rows; returns warnings as sentences."""
        return []

    def class_counts(self) -> dict[str, int]:
        """Counts the training examples of each class; empty without classes."""
        return {}

    def class_table(self, rows: TokenRows, outputs: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Describes the predictions of each class; see `scores.class_table`."""
        return []

    def baseline(self, rows: TokenRows) -> Scores:
        """Scores a prediction that is the same for all rows; empty if the task has none."""
        return {}

    def part(
        self,
        split: str,
        examples: Iterable[T],
        group: Callable[[T], Any] = lambda example: object(),
    ) -> Iterator[T]:
        """Yields the examples of a file that belong to a split: all, unless it is in `parts`.

        Args:
          group: Returns equal values for neighbors that must be in the same split. By default,
            neighbors may be in different splits.
        """
        heldout = HeldOut(VALIDATION_FRACTION)
        for number, (_, neighbors) in enumerate(itertools.groupby(examples, group)):
            if split not in self.parts or (number in heldout) == (split != "train"):
                yield from neighbors

    @abc.abstractmethod
    def read(self, source: epath.Path, split: str, bad_rows: BadRecords) -> TokenRows:
        """Reads and tokenizes a file.

        Args:
          split: The split whose rules apply. The labels of a test split are not needed.
          bad_rows: Handles examples that cannot be used.
        """

    def check_not_empty(self, source: epath.Path, split: str, examples: Sized) -> None:
        if not len(examples):
            raise UserError(
                f"config.data.input: the {split} split ({source}) has no rows that can be used"
            )

    @abc.abstractmethod
    def score(self, rows: TokenRows, outputs: dict[str, np.ndarray]) -> Scores:
        """Computes the official metrics of rows whose labels are known; None where undefined.

        Args:
          rows: The result of `read`.
          outputs: The outputs for all rows in order, float32: "logits" [N, labels] (regression:
            [N, 1]), [N, L, labels] for tags or [N, C] for choices; "start_logits" and
            "end_logits", [N, L]; or "embeddings" [N, D].
        """

    def warnings_of(self, scores: Scores) -> list[str]:
        """Returns what is wrong with a finished model that has these scores, as sentences."""
        return []

    def tuned(self, results: Mapping[str, Any]) -> "Task":
        """Returns the task for test splits, whose threshold the results of the run may choose."""
        return self

    @abc.abstractmethod
    def write_predictions(
        self, rows: TokenRows, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes the predictions to a file in the format of the task's leaderboard."""

    @abc.abstractmethod
    def predictions_name(self, split: str) -> str:
        """Returns the name for the file of predictions, such as "MRPC.tsv"."""
