"""GLUE (Wang et al. 2019): files, labels, metrics and submissions.

The data are the standard download: one folder per task, TSV without quoting.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tasks.example_task import SentenceTask
from bert_jax.tasks.task import find_files
from bert_jax.tasks.token_rows import ExampleRows
from bert_jax.text.tables import TableRow


@dataclasses.dataclass(frozen=True)
class Spec:
    """The definition of one of GLUE's tasks.

    Attributes:
      folder: The name of the task's folder in the standard download, and of its submission.
      labels: The label names in the order of the logits; empty for a number from 0 to 5.
      values: The spelling of the labels in files and submissions, in the same order.
      metric: The score on the leaderboard; if it has two, their mean.
      header: The columns of train.tsv and dev.tsv if these files do not name them.
    """

    folder: str
    texts: tuple[str, ...]
    label: str = "label"
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ("0", "1")
    metric: str = "accuracy"
    header: tuple[str, ...] = ()


# The scores of STS-B.
_LIMITS = (0, 5)
# The first column of a test set (QQP's is `id`), which submissions repeat.
_INDEX = ("index", "id")
_ENTAILMENT = ("entailment", "not_entailment")
_SENTENCES = ("sentence1", "sentence2")
_MNLI = Spec(
    "MNLI",
    _SENTENCES,
    "gold_label",
    # The order of run_classifier.py.
    labels=("contradiction", "entailment", "neutral"),
    values=("contradiction", "entailment", "neutral"),
)
SPECS = {
    "cola": Spec(
        "CoLA",
        ("sentence",),
        labels=("unacceptable", "acceptable"),
        metric="matthews",
        header=("source", "label", "star", "sentence"),
    ),
    "sst2": Spec("SST-2", ("sentence",), labels=("negative", "positive")),
    "mrpc": Spec(
        "MRPC",
        ("#1 String", "#2 String"),
        "Quality",
        labels=("not_equivalent", "equivalent"),
        metric="f1_accuracy",
    ),
    "stsb": Spec("STS-B", _SENTENCES, "score", metric="pearson_spearman"),
    "qqp": Spec(
        "QQP",
        ("question1", "question2"),
        "is_duplicate",
        labels=("not_duplicate", "duplicate"),
        metric="f1_accuracy",
    ),
    "mnli": _MNLI,
    "qnli": Spec("QNLI", ("question", "sentence"), labels=_ENTAILMENT, values=_ENTAILMENT),
    "rte": Spec("RTE", _SENTENCES, labels=_ENTAILMENT, values=_ENTAILMENT),
    "wnli": Spec("WNLI", _SENTENCES, labels=("not_entailment", "entailment")),
    # The diagnostic set has no training data; MNLI's model predicts it.
    "ax": _MNLI,
}
_FILES = {"train": ("train.tsv",), "validation": ("dev.tsv",), "test": ("test.tsv",)}
# The diagnostic set may be beside MNLI's folder.
_MNLI_FILES = {
    "train": ("train.tsv",),
    "validation_matched": ("dev_matched.tsv",),
    "validation_mismatched": ("dev_mismatched.tsv",),
    "test_matched": ("test_matched.tsv",),
    "test_mismatched": ("test_mismatched.tsv",),
    "test_ax": (
        "../AX/AX.tsv",
        "../AX/test.tsv",
        "../AX/diagnostic.tsv",
        "../diagnostic/diagnostic.tsv",
    ),
}
_SUBMISSIONS = {"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", "test_ax": "AX"}


class GlueTask(SentenceTask):
    """One of GLUE's tasks; see `Task`.

    Args:
      name: A key of SPECS. "ax" has the data of "mnli", and the diagnostic set must exist.
    """

    limits = _LIMITS

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._spec = spec = SPECS[self.name]
        self.metric, self.label_values = spec.metric, spec.values
        self.text_columns, self.label_columns = spec.texts, [spec.label]

    def find_labels(self) -> tuple[str, ...]:
        return SPECS[self.name].labels

    def open_sources(self, source: str) -> dict[str, epath.Path]:
        return find_splits(self.name, source)

    def header(self, split: str) -> Sequence[str]:
        return () if split.startswith("test") else self._spec.header

    def id_of(self, row: TableRow, split: str) -> str:
        """Returns the index that the leaderboard requires, the first column of a test set."""
        if not split.startswith("test"):
            return str(row.number)
        column, index = next(iter(row.values.items()))
        if column not in _INDEX:
            raise UserError(
                f"{row.where}: the first column is {column!r}, but in a test split it must be "
                f"{' or '.join(_INDEX)}, which predictions repeat"
            )
        return index

    def write_predictions(
        self, rows: ExampleRows, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes a TSV in the format of gluebenchmark.com."""
        predictions_N = self.predictions(outputs)
        if self.labels:
            texts = [self._spec.values[i] for i in predictions_N]
        else:
            texts = [f"{value:.3f}" for value in np.clip(predictions_N, *_LIMITS)]
        lines = zip(rows.ids, texts, strict=True)
        content = "index\tprediction\n" + "".join(f"{i}\t{text}\n" for i, text in lines)
        files.write_whole(path, content.encode())

    def predictions_name(self, split: str) -> str:
        default = self._spec.folder if split == "test" else f"{self._spec.folder}-{split}"
        return f"{_SUBMISSIONS.get(split, default)}.tsv"


def find_splits(name: str, source: str) -> dict[str, epath.Path]:
    names = _MNLI_FILES if SPECS[name] is _MNLI else _FILES
    found = find_files(source, names)
    if name == "ax" and "test_ax" not in found:
        raise UserError(
            f"config.data.input is {source}, which has no test_ax split "
            f"({', '.join(names['test_ax'])})"
        )
    return found
