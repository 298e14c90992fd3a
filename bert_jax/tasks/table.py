"""Classification and regression on the user's own TSV, CSV or JSONL files with named columns."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from ml_collections import ConfigDict
from scipy.special import expit, softmax

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tasks.example_task import SentenceTask, as_number
from bert_jax.tasks.task import split_files
from bert_jax.tasks.token_rows import ExampleRows
from bert_jax.text.bad_records import reading_fields
from bert_jax.text.formats import TABLES
from bert_jax.text.named_sources import split_inputs
from bert_jax.text.tables import read_rows

_TWO_CLASSES = ("accuracy", "f1", "f1_accuracy", "matthews")
_CLASSES = ("accuracy", "macro_f1", "weighted_f1")
_MULTI_LABEL = ("micro_f1", "macro_f1", "average_precision", "accuracy")
_REGRESSION = (
    "pearson_spearman",
    "pearson",
    "spearman",
    "negative_mean_squared_error",
    "negative_mean_absolute_error",
    "r2",
)
# A column with more labels than this probably holds numbers, or is the wrong one.
_MAX_LABELS = 10_000
# The file names that each split of a table may have in a folder.
FILE_NAMES = split_files(*TABLES)


class TableTask(SentenceTask):
    """A task on the user's own files; see `Task`. The options are `config.table`."""

    file_names = FILE_NAMES

    def __init__(self, config: ConfigDict, *args: Any):
        own = config.table
        self.text_columns = [column for column in (own.text_column, own.text_b_column) if column]
        self.label_column, self.multi_label = own.label_column, own.multi_label
        self.threshold = own.threshold
        super().__init__(config, *args)
        self.label_values = self.labels
        known: Sequence[str] = _REGRESSION
        if self.multi_label:
            known = _MULTI_LABEL
        elif self.labels:
            known = _TWO_CLASSES if len(self.labels) == 2 else _CLASSES
        self.metric = self._options["metric"] or known[0]
        if self.metric not in known:
            raise UserError(
                f"config.table.metric is {self.metric!r}; with these labels it must be one of "
                + ", ".join(known)
            )

    def label_names(self, values: Mapping[str, str]) -> list[str]:
        text = values[self.label_column]
        if not self.multi_label:
            return super().label_names(values)
        if text.startswith("["):
            # A list of JSON lines.
            with reading_fields():
                names = [str(name) for name in json.loads(text)]
        else:
            names = text.split(self._options["label_separator"])
        return [stripped for name in names if (stripped := name.strip())]

    def find_labels(self) -> tuple[str, ...]:
        if self._options["regression"]:
            return ()
        return tuple(split_inputs(self._options["labels"])) or self._inferred_labels()

    def write_predictions(
        self, rows: ExampleRows, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes a CSV with the index, the prediction and the probability of each label.

        Several labels of a row are separated as in the training file.
        """
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["index", "prediction", *(f"p({label})" for label in self.labels)])
        predictions, ids = self.predictions(outputs), rows.ids
        if self.labels:
            logits_NxC = outputs["logits"].astype(np.float64)
            probs_NxC = expit(logits_NxC) if self.multi_label else softmax(logits_NxC, axis=-1)
            for id, predicted, probs in zip(ids, predictions, probs_NxC, strict=True):
                chosen = np.flatnonzero(predicted) if self.multi_label else [predicted]
                names = self._options["label_separator"].join(self.labels[c] for c in chosen)
                writer.writerow([id, names, *(f"{p:.6f}" for p in probs)])
        else:
            # `str` of a float32 has enough digits to identify it.
            writer.writerows(zip(ids, map(str, predictions), strict=True))
        files.write_whole(path, stream.getvalue().encode())

    def predictions_name(self, split: str) -> str:
        return f"{split}.csv"

    def _inferred_labels(self) -> tuple[str, ...]:
        """Sorts the labels in the training file; numbers are sorted by their values."""
        path, column = self.sources["train"], self.label_column
        lists = [column] if self.multi_label else []
        rows = read_rows(path, [*self.text_columns, column], self.new_bad_rows(), lists=lists)
        names = {name for row in rows for name in self.label_names(row.values) if name}
        if not 2 <= len(names) <= _MAX_LABELS:
            raise UserError(
                f"{path} has {len(names):,} different labels in column {column}; there must be 2 "
                f"to {_MAX_LABELS:,} (for numbers: --config.table.regression=True)"
            )
        numbers = {as_number(name) for name in names}
        if None in numbers:
            return tuple(sorted(names))
        return tuple(sorted(names, key=as_number))
