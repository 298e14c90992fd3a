"""Classification and regression on one's own TSV, CSV or JSONL files with named columns."""

import csv
import io
import itertools
from collections.abc import Iterator

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.tasks import sources
from bert_jax.tasks.glue import as_number
from bert_jax.tasks.readers import read_rows
from bert_jax.tasks.sentence_rows import BadRows, Example
from bert_jax.tasks.sentence_task import SentenceTask
from bert_jax.tokenizers import Tokenizer

_FILES = {
    split: tuple(f"{name}.{suffix}" for name in names for suffix in ("tsv", "csv", "jsonl"))
    for split, names in (
        ("train", ("train",)),
        ("validation", ("validation", "dev")),
        ("test", ("test",)),
    )
}
# More of them are rather numbers, or the wrong column.
_MOST_LABELS = 10_000


class Table(SentenceTask):
    """A class or a number for each row; see `bert_jax.tasks.task.Task`.

    Args:
      source: A folder with train, validation (or dev) and test, each .tsv, .csv or .jsonl; or
        files, "train=FILE,validation=FILE,test=FILE".
      text_column: The column of the sentence.
      text_b_column: The column of the second of a pair; empty: there is none.
      label_column: The column of the label or number.
      labels: Names in the order of the logits; empty: those in the training file, sorted.
      regression: Whether the label is a number.
      metric: One of the scores; empty: "accuracy", or "pearson_spearman" of regression.
      tokenizer, max_seq_length, bad_rows: As of `SentenceTask`.

    Raises:
      UserError: the data are not there, lack a column, or have no two labels.
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
        if source.startswith(sources.TFDS_PREFIX):
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
        known = ("pearson_spearman", "pearson", "spearman", "negative_mean_squared_error")
        if not regression:
            labels = sources.split_names(labels) or self._inferred_labels(bad_rows == "skip")
            if len(labels) < 2 or len(set(labels)) < len(labels):
                raise UserError(
                    f"config.table.labels is {','.join(labels)}; it must be two names or more, "
                    "each once"
                )
            known = ("accuracy", "f1", "f1_accuracy", "matthews")[: 4 if len(labels) == 2 else 1]
        if metric and metric not in known:
            raise UserError(
                f"config.table.metric is {metric!r}; here it must be one of {', '.join(known)}"
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
        # The labels of a test file, if it has any, are not asked for.
        is_test = split == "test"
        needed = self._texts if is_test else [*self._texts, self._label_column]
        rows = read_rows(self._files[split], needed, self._bad_rows, must_stay=is_test)
        for row in rows:
            label = None
            if not is_test and (label := self._label(row.where, row.values)) is None:
                continue
            text, *others = (row.values[column] for column in self._texts)
            yield Example(row.where, text, others[0] if others else None, label, str(row.number))

    def write_predictions(
        self, split: str, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes a CSV with a line a row: index, prediction, and the probability of each label."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        predictions_N = self.predictions(outputs)
        writer.writerow(["index", "prediction", *(f"p({label})" for label in self.labels)])
        if self.labels:
            logits_NxC = outputs["logits"].astype(np.float64)
            probs_NxC = np.exp(logits_NxC - logits_NxC.max(axis=-1, keepdims=True))
            probs_NxC /= probs_NxC.sum(axis=-1, keepdims=True)
            cells = [
                (self.labels[i], *(f"{p:.6f}" for p in probs))
                for i, probs in zip(predictions_N, probs_NxC, strict=True)
            ]
        else:
            # As many digits as tell a float32 from the next.
            cells = [(str(value),) for value in predictions_N]
        for index, row in zip(self.rows(split).index_N, cells, strict=True):
            writer.writerow([index, *row])
        files.write_whole(path, stream.getvalue().encode())

    def predictions_name(self, split: str) -> str:
        """The name of the file that `write_predictions` is given for a split."""
        return f"{split}.csv"

    def _label(self, where: str, values: dict[str, str]) -> int | float | None:
        """The label of a row; None of a bad one that is left out."""
        text = values[self._label_column].strip()
        if not self.labels:
            number = as_number(text)
            if number is None:
                detail = f"{self._label_column} is {text!r}, no number"
                self._bad_rows.bad("no number", where, detail)
            return number
        if text in self.labels:
            return self.labels.index(text)
        known = ", ".join(self.labels[:20]) + (", ..." if len(self.labels) > 20 else "")
        detail = f"{self._label_column} is {text!r}, not one of the labels {known}"
        self._bad_rows.bad("unknown label", where, detail)
        return None

    def _inferred_labels(self, skip: bool) -> tuple[str, ...]:
        path = self._files["train"]
        names = set()
        # What is skipped is counted when the rows are read.
        for row in read_rows(path, [*self._texts, self._label_column], BadRows(skip)):
            if name := row.values[self._label_column].strip():
                names.add(name)
            if len(names) > _MOST_LABELS:
                raise UserError(
                    f"{path} has more than {_MOST_LABELS:,} different {self._label_column}; is it "
                    "a number (--config.table.regression=True), or another column that is meant "
                    "(--config.table.label_column)?"
                )
        if len(names) < 2:
            raise UserError(
                f"{path} has {len(names)} label(s) in column {self._label_column}; there must be "
                "two or more"
            )
        # Numbers in their own order.
        numbers = {name: as_number(name) for name in names}
        if all(number is not None for number in numbers.values()):
            ordered = sorted(names, key=lambda name: (numbers[name], name))
            for one, other in itertools.pairwise(ordered):
                if numbers[one] == numbers[other]:
                    raise UserError(
                        f"{path} has the labels {one!r} and {other!r} in column "
                        f"{self._label_column}, which are one number; spell it in one way"
                    )
            return tuple(ordered)
        return tuple(sorted(names))
