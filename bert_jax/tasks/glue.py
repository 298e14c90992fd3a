"""GLUE (Wang et al. 2019): files, labels, metrics and submissions.

The data are the standard download, one folder per task with TSV without quoting, or the data set
`glue` of the Hugging Face Hub, in the formats of `datasets`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tasks.example_task import SentenceTask
from bert_jax.tasks.task import find_files, split_files
from bert_jax.tasks.token_rows import ExampleRows
from bert_jax.text.bad_records import BadRecords
from bert_jax.text.readers import suffix_of
from bert_jax.text.tables import TableRow


@dataclasses.dataclass(frozen=True)
class Spec:
    """The definition of one of GLUE's tasks.

    Attributes:
      folder: The name of the task's folder in the standard download, and of its submission. That of
        the Hub has the task's name.
      texts, label: The columns of the standard download.
      labels: The label names in the order of the logits; empty for a number from 0 to 5.
      values: The spelling of the labels in files and submissions, in the same order.
      metric: The score on the leaderboard; if it has two, their mean.
      header: The columns of train.tsv and dev.tsv if these files do not name them.
      hub_texts: The columns of the sentences on the Hub if they differ.
      hub_labels: The labels in the order of their numbers on the Hub if it differs.
    """

    folder: str
    texts: tuple[str, ...]
    label: str = "label"
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ("0", "1")
    metric: str = "accuracy"
    header: tuple[str, ...] = ()
    hub_texts: tuple[str, ...] = ()
    hub_labels: tuple[str, ...] = ()


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
    hub_texts=("premise", "hypothesis"),
    hub_labels=("entailment", "neutral", "contradiction"),
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
        hub_texts=_SENTENCES,
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
_HUB_FORMATS = ("jsonl", "json", "parquet", "arrow")
_FILES = split_files(
    *_HUB_FORMATS, train=("train.tsv",), validation=("dev.tsv",), test=("test.tsv",)
)
_KINDS = ("matched", "mismatched")
# The diagnostic set may be beside MNLI's folder.
_MNLI_FILES = {
    split: (f"{split.replace('validation', 'dev')}.tsv", *(f"{split}.{x}" for x in _HUB_FORMATS))
    for split in (
        "train",
        *(f"{half}_{kind}" for half in ("validation", "test") for kind in _KINDS),
    )
} | {
    "test_ax": (
        "../AX/AX.tsv",
        "../AX/test.tsv",
        "../AX/diagnostic.tsv",
        "../diagnostic/diagnostic.tsv",
        *(f"../ax/test.{end}" for end in _HUB_FORMATS),
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
        self._spec = SPECS[self.name]
        self.metric = self._spec.metric

    def find_labels(self) -> tuple[str, ...]:
        return SPECS[self.name].labels

    def open_sources(self, source: str) -> dict[str, epath.Path]:
        return find_splits(self.name, source)

    def read(self, source: epath.Path, split: str, bad_rows: BadRecords) -> ExampleRows:
        # Each file may have another format.
        spec, self._is_of_hub = self._spec, suffix_of(source).removeprefix(".") in _HUB_FORMATS
        hub = spec.hub_texts or spec.texts, ["label"], spec.labels, ["idx"]
        own = hub if self._is_of_hub else (spec.texts, [spec.label], spec.values, [])
        self.text_columns, self.label_columns, self.label_values, self.id_columns = own
        return super().read(source, split, bad_rows)

    def label_names(self, values: Mapping[str, Any]) -> list[str]:
        (name,) = super().label_names(values)
        numbered = self._spec.hub_labels or self.labels
        is_number = self._is_of_hub and name in map(str, range(len(numbered)))
        return [numbered[int(name)] if is_number else name]

    def header(self, split: str) -> Sequence[str]:
        return () if split.startswith("test") else self._spec.header

    def id_of(self, row: TableRow, split: str) -> str:
        """Returns the index that the leaderboard requires, idx or a test file's first column."""
        if not split.startswith("test"):
            return str(row.number)
        if self._is_of_hub:
            return row.values["idx"]
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
