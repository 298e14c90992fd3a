"""GLUE (Wang et al. 2019): files, labels, metrics and submissions.

The files are those of the standard download (one folder per task, TSV without quoting) or those
of TensorFlow Datasets.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.data import tfds_source
from bert_jax.data.bad_records import BadRecord
from bert_jax.errors import UserError
from bert_jax.tasks import sources
from bert_jax.tasks.sentence_task import Example, SentenceTask, check_not_empty
from bert_jax.tasks.table_files import TableRow, as_number, read_rows
from bert_jax.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class Spec:
    """The definition of one of GLUE's tasks.

    Attributes:
      folder: The name of its folder in the standard download, and of its submission.
      texts: The columns of the one or two sentences.
      label: The column of the label.
      labels: The label names in the order of the logits; empty for a number from 0 to 5.
      values: The spelling of the labels in files and submissions, in the same order.
      metric: The score on the leaderboard; the mean of two if there are two.
      header: The columns of train.tsv and dev.tsv if these files do not name them.
      tfds: The columns of the sentences in TensorFlow Datasets if they differ.
    """

    folder: str
    texts: tuple[str, ...]
    label: str = "label"
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ("0", "1")
    metric: str = "accuracy"
    header: tuple[str, ...] = ()
    tfds: tuple[str, ...] = ()


# The highest score of STS-B.
_HIGHEST = 5
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
    tfds=("premise", "hypothesis"),
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
        tfds=_SENTENCES,
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
# The diagnostic set may lie beside MNLI's folder.
_MNLI_FILES = {
    "train": ("train.tsv",),
    "validation_matched": ("dev_matched.tsv",),
    "validation_mismatched": ("dev_mismatched.tsv",),
    "test_matched": ("test_matched.tsv",),
    "test_mismatched": ("test_mismatched.tsv",),
    "test_ax": ("../AX/AX.tsv", "../AX/test.tsv", "../diagnostic/diagnostic.tsv"),
}
_SUBMISSIONS = {"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", "test_ax": "AX"}


class GlueTask(SentenceTask):
    """One of GLUE's tasks; see `Task`.

    Args:
      name: A key of SPECS. "ax" is "mnli" that must have the diagnostic set.
      source: The task's folder, its files as "train=FILE,validation=FILE,test=FILE", or
        "tfds:glue/NAME".

    Raises:
      UserError: The data do not exist.
    """

    def __init__(
        self,
        name: str,
        source: str,
        tokenizer: Tokenizer,
        *,
        max_seq_length: int = 128,
        bad_rows: str = "refuse",
    ):
        self._spec = spec = SPECS[name]
        self._files: sources.SplitFiles = {}
        if source.startswith(tfds_source.TFDS_PREFIX):
            self._builders = _tfds_splits(name, source)
            found = self._builders
        else:
            found = self._files = sources.find_files(source, _file_names(name))
        _check_splits(name, source, found)
        super().__init__(
            name,
            spec.labels,
            spec.metric,
            tuple(split for split in _file_names(name) if split in found),
            tokenizer,
            max_seq_length=max_seq_length,
            bad_rows=bad_rows,
        )

    def examples(self, split: str) -> Iterator[Example]:
        is_test = split.startswith("test")
        if not self._files:
            yield from self._tfds_examples(split, is_test)
            return
        spec = self._spec
        rows = read_rows(
            self._files[split],
            spec.texts if is_test else (*spec.texts, spec.label),
            self._bad_rows,
            must_stay=is_test,
            header=() if is_test else spec.header,
        )
        for row in rows:
            with self._bad_rows.catching(row.where, must_stay=is_test):
                label = None if is_test else self._label(row.values[spec.label])
                index = _index(row) if is_test else str(row.number)
                text, *others = (row.values[column] for column in spec.texts)
                example = Example(text, others[0] if others else None, label, index)
                yield check_not_empty(example, is_test)

    def write_predictions(
        self, split: str, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes the TSV of gluebenchmark.com."""
        predictions_N = self.predictions(outputs)
        if self.labels:
            texts = [self._spec.values[i] for i in predictions_N]
        else:
            texts = [f"{value:.3f}" for value in np.clip(predictions_N, 0, _HIGHEST)]
        lines = zip(self.rows(split).index_N, texts, strict=True)
        content = "index\tprediction\n" + "".join(f"{i}\t{text}\n" for i, text in lines)
        files.write_whole(path, content.encode())

    def predictions_name(self, split: str) -> str:
        """Returns the name that the leaderboard requires."""
        default = self._spec.folder if split == "test" else f"{self._spec.folder}-{split}"
        return f"{_SUBMISSIONS.get(split, default)}.tsv"

    def _label(self, text: str) -> int | float:
        spec = self._spec
        if spec.labels:
            if text not in spec.values:
                known = ", ".join(spec.values)
                raise BadRecord("unknown label", f"the label is {text!r}, not one of {known}")
            return spec.values.index(text)
        number = as_number(text)
        if number is None or not 0 <= number <= _HIGHEST:
            detail = f"{spec.label} is {text!r}, not a number from 0 to {_HIGHEST}"
            raise BadRecord("not a number", detail)
        return number

    def _tfds_examples(self, split: str, is_test: bool) -> Iterator[Example]:
        """Yields the examples in the order of the original files."""
        spec, (builder, tfds_split) = self._spec, self._builders[split]
        names = builder.info.features["label"]
        examples = tfds_source.examples(builder, tfds_split)
        for example in sorted(examples, key=lambda e: int(e["idx"])):
            index = str(int(example["idx"]))
            text, *others = (example[column].decode() for column in spec.tfds or spec.texts)
            label = None
            if not is_test:
                label = float(example["label"])
                if spec.labels:
                    # The order of MNLI's labels differs in TensorFlow Datasets.
                    label = spec.labels.index(names.int2str(int(label)))
            where = f"{builder.info.full_name} {tfds_split}:{index}"
            with self._bad_rows.catching(where, must_stay=is_test):
                example = Example(text, others[0] if others else None, label, index)
                yield check_not_empty(example, is_test)


def check_source(name: str, source: str, *, with_test: bool) -> None:
    """Raises UserError if a task's folder, or the files named, lack a split."""
    if source.startswith(tfds_source.TFDS_PREFIX):
        return
    names = _file_names(name)
    found = sources.find_files(source, names)
    _check_splits(name, source, found)
    tests = [split for split in names if split.startswith("test")]
    if with_test and not set(tests) & set(found):
        raise UserError(
            f"config.eval.predict needs the test split, but {source} has no {names[tests[0]][0]}"
        )


def _file_names(name: str) -> dict[str, tuple[str, ...]]:
    return _MNLI_FILES if SPECS[name] is _MNLI else _FILES


def _check_splits(name: str, source: str, found: Mapping[str, Any]) -> None:
    for split, names in _file_names(name).items():
        optional = split.startswith("test") or "mismatched" in split
        if split not in found and (not optional or name == "ax" and split == "test_ax"):
            raise UserError(
                f"config.data.input is {source}, where {' or '.join(names)} is missing, "
                f"the {split} split of {name}"
            )


def _index(row: TableRow) -> str:
    """Returns the leaderboard's name of a row of a test set, which is in its first column."""
    name, index = next(iter(row.values.items()))
    if name not in _INDEX:
        raise UserError(
            f"{row.where}: the first column is {name!r}, but that of a test split must be "
            f"{' or '.join(_INDEX)}, which predictions repeat"
        )
    return index


def _tfds_splits(name: str, source: str) -> dict[str, tuple[Any, str]]:
    """Returns the builder and the name of each split in TensorFlow Datasets."""
    mnli = source.replace("glue/ax", "glue/mnli") if name == "ax" else source
    builder = tfds_source.open_downloaded(mnli)
    _check_builder(name, builder)
    splits = {s: (builder, s) for s in _file_names(name) if s in builder.info.splits}
    diagnostic = mnli.replace("glue/mnli", "glue/ax")
    # With MNLI it is used if it is on disk: nothing is downloaded that was not asked for.
    if name == "ax" or name == "mnli" and tfds_source.is_on_disk(diagnostic):
        splits["test_ax"] = tfds_source.open_downloaded(diagnostic), "test"
    return splits


def _check_builder(name: str, builder: Any) -> None:
    """Refuses the data of another task. Some tasks have the same fields."""
    spec, full_name = SPECS[name], builder.info.full_name
    tfds_source.check_features(builder, (*(spec.tfds or spec.texts), "label", "idx"))
    expected = "mnli" if name == "ax" else name
    is_other = full_name.split("/")[1] in SPECS.keys() - {expected}
    names = getattr(builder.info.features["label"], "names", ())
    if is_other or spec.labels and set(names) != set(spec.labels):
        raise UserError(
            f"config.data.input: {full_name} is not the data of {name} (tfds:glue/{expected})"
        )
