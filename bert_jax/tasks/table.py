"""Classification and regression on the user's own TSV, CSV or JSONL files with named columns."""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from ml_collections import ConfigDict
from scipy.special import expit, softmax

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tasks.example_task import SentenceTask, as_number, spelling
from bert_jax.tasks.task import split_files
from bert_jax.tasks.token_rows import ExampleRows
from bert_jax.text.bad_records import BadRecord
from bert_jax.text.guess_format import TABLES
from bert_jax.text.named_sources import split_inputs
from bert_jax.text.tables import as_text, classes_of, listed, read_rows

_TWO_CLASSES = ("accuracy", "f1", "f1_accuracy", "matthews", "macro_f1")
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
# What a vector of labels has for each.
_BITS = {"0": False, "1": True, "false": False, "true": True}
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
        self.multi_label, self.threshold = own.multi_label, own.threshold
        columns = split_inputs(own.label_column) if own.multi_label else [own.label_column]
        self.label_columns = columns
        super().__init__(config, *args)
        self.label_values = [spelling(label) for label in self.labels]
        known: Sequence[str] = _REGRESSION
        if self.multi_label:
            known = _MULTI_LABEL
        elif self.labels:
            known = _TWO_CLASSES if len(self.labels) == 2 else _CLASSES
        default = "macro_f1" if self._options["class_weights"] else known[0]
        self.metric = self._options["metric"] or default
        if self.metric not in known:
            raise UserError(
                f"config.table.metric is {self.metric!r}; with these labels it must be one of "
                + ", ".join(known)
            )

    def label_names(self, values: Mapping[str, Any]) -> list[str]:
        if not self.multi_label:
            return super().label_names(values)
        items = self._items(values)
        bits = [_BITS.get(spelling(item)) for item in items]
        is_vector = len(bits) == len(self.labels) and None not in bits
        # Without names, or with a column for each label, there are vectors only.
        if len(self.label_columns) == 1 and self.labels[:1] != positions(1):
            if not is_vector or _BITS.keys() & self.label_values:
                return items
        if not is_vector:
            detail = f"{','.join(self.label_columns)} is {', '.join(items)!r}"
            expected = f"{len(self.labels)} numbers 0 or 1, one for each label"
            raise BadRecord("not a vector of labels", f"{detail}, not {expected}")
        return [label for label, bit in zip(self.labels, bits, strict=True) if bit]

    def _items(self, values: Mapping[str, Any]) -> list[str]:
        """Returns the names of the labels of a row, or the numbers of its vector, as texts."""
        if len(self.label_columns) > 1:
            is_named = {*self.label_columns} == {*self.labels}
            return [values[c].strip() for c in (self.labels if is_named else self.label_columns)]
        found = text = values[column := self.label_columns[0]]
        if not isinstance(text, list) and (found := listed(str(text))) is None:
            if str(text).lstrip().startswith(("[", "{")):
                detail = f"{column} is {text!r:.100}, not a list such as ['a', 'b']"
                raise BadRecord("not a list", detail)
            found = text.split(self._options["label_separator"])
        for item in found:
            is_fraction = isinstance(item, float) and not item.is_integer()
            if is_fraction or not isinstance(item, str | int | float):
                raise BadRecord("not a label", f"{column} has {item!r} in its list")
        return [text for item in found if (text := as_text(item).strip())]

    def find_labels(self) -> tuple[str, ...]:
        if self._options["regression"]:
            return ()
        if given := split_inputs(self._options["labels"]):
            return tuple(given)
        return tuple(self.label_columns) if len(self.label_columns) > 1 else self._inferred_labels()

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
        """Finds the labels of the training file.

        Classes of `datasets` keep their order, so that they keep their numbers. Other labels are
        sorted; numbers by their values.
        """
        path, column = self.sources["train"], self.label_columns[0]
        lists, bad_rows = [column] if self.multi_label else [], self.new_bad_rows()
        names: dict[str, str] = {}
        sizes: Counter[int] = Counter()
        is_repeated = False
        for row in read_rows(path, [*self.text_columns, column], bad_rows, lists=lists):
            with bad_rows.catching(row.where):
                items = [*filter(None, self.label_names(row.values))]
                spelled = {spelling(item): item for item in items}
                names = spelled | names
                sizes[len(items)] += 1
                is_number = all(item in _BITS or as_number(item) is not None for item in spelled)
                is_repeated |= is_number and len(spelled) < len(items)
        stored = tuple(classes_of(path).get(column, ()))
        if stored and names.keys() <= {spelling(name) for name in stored}:
            return stored
        # Names are not repeated, and not as many in all rows.
        del sizes[0]
        if is_repeated or names.keys() <= _BITS.keys() and len(sizes) == 1 and min(sizes) > 1:
            return positions(sizes.most_common(1)[0][0])
        if not 2 <= len(names) <= _MAX_LABELS:
            raise UserError(
                f"{path} has {len(names):,} different labels in column {column}; there must be 2 "
                f"to {_MAX_LABELS:,} (for numbers: --config.table.regression=True)"
            )
        are_numbers = None not in map(as_number, names)
        return tuple(sorted(names.values(), key=as_number if are_numbers else None))


def positions(number: int) -> tuple[str, ...]:
    """Names labels that have only a place in a vector, as `transformers` does."""
    return tuple(f"LABEL_{i}" for i in range(number))
