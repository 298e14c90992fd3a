"""Classification and regression on the user's own TSV, CSV or JSONL files with named columns."""

import csv
import io
import itertools
from collections.abc import Iterator

import numpy as np
from etils import epath
from scipy.special import softmax

from bert_jax import files
from bert_jax.data.bad_records import BadRecord, BadRecords
from bert_jax.data.tfds_source import TFDS_PREFIX
from bert_jax.errors import UserError
from bert_jax.tasks import sources
from bert_jax.tasks.sentence_task import Example, SentenceTask, check_not_empty
from bert_jax.tasks.table_files import FORMATS, as_number, read_rows
from bert_jax.tokenizers import Tokenizer

_FILES = {
    split: tuple(f"{name}.{suffix}" for name in names for suffix in FORMATS)
    for split, names in (
        ("train", ("train",)),
        ("validation", ("validation", "dev")),
        ("test", ("test",)),
    )
}
_METRICS = ("accuracy", "f1", "f1_accuracy", "matthews")
_REGRESSION_METRICS = ("pearson_spearman", "pearson", "spearman", "negative_mean_squared_error")
# A column with more labels than this probably holds numbers, or is the wrong one.
_MAX_LABELS = 10_000


class TableTask(SentenceTask):
    """A class or a number for each row; see `Task`.

    Args:
      source: A folder with train, validation (or dev) and test, each .tsv, .csv or .jsonl; or
        files, "train=FILE,validation=FILE,test=FILE".
      text_column: The column of the sentence.
      text_b_column: The column of the second sentence of a pair; empty if there is none.
      label_column: The column of the label or number.
      labels: The label names in the order of the logits; empty for those of the training
        file, sorted.
      regression: Whether the label is a number.
      metric: One of the scores; empty for the first of _METRICS or _REGRESSION_METRICS.

    Raises:
      UserError: The data do not exist, lack a column, or have fewer than two labels.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        text_column: str = "text",
        text_b_column: str = "",
        label_column: str = "label",
        labels: tuple[str, ...] = (),
        regression: bool = False,
        metric: str = "",
        max_seq_length: int = 128,
        bad_rows: str = "refuse",
    ):
        if source.startswith(TFDS_PREFIX):
            raise UserError(
                f"config.data.input is {source}, but config.task=table reads files: a folder with "
                f"{_FILES['train'][0]}, or train=FILE,validation=FILE"
            )
        self._files = sources.find_files(source, _FILES)
        self._texts = [text_column, text_b_column] if text_b_column else [text_column]
        self._label_column = label_column
        for split in ("train", "validation"):
            if split not in self._files:
                raise UserError(
                    f"config.data.input is {source}, which has no {split} file (such as "
                    f"{_FILES[split][0]})"
                )
        if regression and labels:
            raise UserError(
                f"config.table.labels is {','.join(labels)}, but config.table.regression is True: "
                "a number has no labels"
            )
        known = _REGRESSION_METRICS
        if not regression:
            labels = sources.split_names(labels) or self._inferred_labels(bad_rows)
            if len(labels) < 2 or len(set(labels)) < len(labels):
                raise UserError(
                    f"config.table.labels is {','.join(labels)}; it must be two names or more, "
                    "each once"
                )
            known = _METRICS if len(labels) == 2 else _METRICS[:1]
        if metric and metric not in known:
            raise UserError(
                f"config.table.metric is {metric!r}; with these labels it must be one of "
                + ", ".join(known)
            )
        super().__init__(
            "table",
            labels,
            metric or known[0],
            tuple(split for split in _FILES if split in self._files),
            tokenizer,
            max_seq_length=max_seq_length,
            bad_rows=bad_rows,
        )

    def examples(self, split: str) -> Iterator[Example]:
        # A test file needs no labels, and none are read.
        is_test = split == "test"
        needed = self._texts if is_test else [*self._texts, self._label_column]
        for row in read_rows(self._files[split], needed, self._bad_rows, must_stay=is_test):
            with self._bad_rows.catching(row.where, must_stay=is_test):
                label = None if is_test else self._label(row.values[self._label_column].strip())
                text, *others = (row.values[column] for column in self._texts)
                example = Example(text, others[0] if others else None, label, str(row.number))
                yield check_not_empty(example, is_test)

    def write_predictions(
        self, split: str, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes a CSV with the index, the prediction and the probability of each label."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["index", "prediction", *(f"p({label})" for label in self.labels)])
        predictions_N, index_N = self.predictions(outputs), self.rows(split).index_N
        if self.labels:
            probs_NxC = softmax(outputs["logits"].astype(np.float64), axis=-1)
            for index, best, probs in zip(index_N, predictions_N, probs_NxC, strict=True):
                writer.writerow([index, self.labels[best], *(f"{p:.6f}" for p in probs)])
        else:
            # `str` of a float32 has all the digits that distinguish it from the next.
            writer.writerows(zip(index_N, map(str, predictions_N), strict=True))
        files.write_whole(path, stream.getvalue().encode())

    def predictions_name(self, split: str) -> str:
        return f"{split}.csv"

    def _label(self, text: str) -> int | float:
        if not self.labels:
            number = as_number(text)
            if number is None:
                raise BadRecord("not a number", f"{self._label_column} is {text!r}, not a number")
            return number
        if text not in self.labels:
            known = ", ".join(self.labels[:20]) + (", ..." if len(self.labels) > 20 else "")
            detail = f"{self._label_column} is {text!r}, not one of the labels {known}"
            raise BadRecord("unknown label", detail)
        return self.labels.index(text)

    def _inferred_labels(self, bad_rows: str) -> tuple[str, ...]:
        """Returns the labels of the training file, sorted; numbers in their own order."""
        path = self._files["train"]
        needed = [*self._texts, self._label_column]
        names = set()
        # These rows are counted later, when the split is read.
        for row in read_rows(path, needed, BadRecords(bad_rows, "data.bad_rows")):
            if name := row.values[self._label_column].strip():
                names.add(name)
            if len(names) > _MAX_LABELS:
                raise UserError(
                    f"{path} has more than {_MAX_LABELS:,} different {self._label_column}; if it "
                    "is a number, set --config.table.regression=True, else "
                    "--config.table.label_column"
                )
        if len(names) < 2:
            raise UserError(
                f"{path} has {len(names)} label(s) in column {self._label_column}; there must be "
                "two or more"
            )
        numbers = {name: as_number(name) for name in names}
        if None in numbers.values():
            return tuple(sorted(names))
        ordered = sorted(names, key=lambda name: (numbers[name], name))
        for one, other in itertools.pairwise(ordered):
            if numbers[one] == numbers[other]:
                raise UserError(
                    f"{path} has the labels {one!r} and {other!r} in column "
                    f"{self._label_column}, which are one number; spell it in one way"
                )
        return tuple(ordered)
