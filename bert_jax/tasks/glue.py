"""GLUE (Wang et al. 2019): its files, labels, metrics and submissions.

The files are those of the standard download (a folder a task, TSV without quoting) or
TensorFlow Datasets'.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.tasks import sources
from bert_jax.tasks.readers import Row, read_rows
from bert_jax.tasks.sentence_rows import Example
from bert_jax.tasks.sentence_task import SentenceTask
from bert_jax.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class Spec:
    """What one of GLUE's tasks is.

    Attributes:
      folder: Its name in the standard download and of its submission.
      texts: Columns of the one or two sentences.
      label: The label's column.
      labels: Names in the order of the logits; empty: a number from 0 to 5.
      values: How the files and submissions spell the labels, in the same order.
      metric: Its score on the leaderboard; the mean of two where there are two.
      header: Of train.tsv and dev.tsv, where they have none.
      tfds: TensorFlow Datasets' columns of the sentences, where they differ.
    """

    folder: str
    texts: tuple[str, ...]
    label: str = "label"
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ("0", "1")
    metric: str = "accuracy"
    header: tuple[str, ...] = ()
    tfds: tuple[str, ...] = ()


# Of STS-B's scores.
_HIGHEST = 5
# What the first column of every test set is called (QQP's is `id`).
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
    # Has no training set: MNLI's model answers it.
    "ax": _MNLI,
}
_FILES = {"train": ("train.tsv",), "validation": ("dev.tsv",), "test": ("test.tsv",)}
# MNLI's folder, beside which the diagnostic set may lie.
_MNLI_FILES = {
    "train": ("train.tsv",),
    "validation_matched": ("dev_matched.tsv",),
    "validation_mismatched": ("dev_mismatched.tsv",),
    "test_matched": ("test_matched.tsv",),
    "test_mismatched": ("test_mismatched.tsv",),
    "test_ax": ("../AX/AX.tsv", "../AX/test.tsv", "../diagnostic/diagnostic.tsv"),
}
_SUBMISSIONS = {"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", "test_ax": "AX"}


class Glue(SentenceTask):
    """One of GLUE's tasks; see `bert_jax.tasks.task.Task`.

    Args:
      name: A key of SPECS. "ax" is "mnli" that must have the diagnostic set.
      source: The task's folder, its files as "train=FILE,validation=FILE,test=FILE", or
        "tfds:glue/NAME".
      tokenizer, max_seq_length, bad_rows: As of `SentenceTask`.

    Raises:
      UserError: the data are not there.
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
        self._files = {}
        names = _MNLI_FILES if spec is _MNLI else _FILES
        if source.startswith(sources.TFDS_PREFIX):
            self._builders = _tfds_splits(name, source, names)
            splits = tuple(self._builders)
        else:
            self._files = sources.find_files(source, names)
            splits = tuple(split for split in names if split in self._files)
        _check_splits(name, source, splits)
        super().__init__(
            name,
            spec.labels,
            spec.metric,
            splits,
            tokenizer,
            max_seq_length=max_seq_length,
            bad_rows=bad_rows,
        )

    def examples(self, split: str) -> Iterator[Example]:
        if not self._files:
            yield from self._tfds_examples(split)
            return
        spec, is_test = self._spec, split.startswith("test")
        needed = spec.texts if is_test else (*spec.texts, spec.label)
        rows = read_rows(
            self._files[split],
            needed,
            self._bad_rows,
            must_stay=is_test,
            header=() if is_test else spec.header,
        )
        for row in rows:
            label = None
            if not is_test and (label := self._label(row.where, row.values[spec.label])) is None:
                continue
            index = _index(row) if is_test else str(row.number)
            text, *others = (row.values[column] for column in spec.texts)
            yield Example(row.where, text, others[0] if others else None, label, index)

    def write_predictions(
        self, split: str, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes the TSV of gluebenchmark.com; its name there is `predictions_name`."""
        predictions_N = self.predictions(outputs)
        if self.labels:
            texts = [self._spec.values[i] for i in predictions_N]
        else:
            texts = [f"{value:.3f}" for value in np.clip(predictions_N, 0, _HIGHEST)]
        lines = zip(self.rows(split).index_N, texts, strict=True)
        content = "index\tprediction\n" + "".join(f"{i}\t{text}\n" for i, text in lines)
        files.write_whole(path, content.encode())

    def predictions_name(self, split: str) -> str:
        """The name that the leaderboard wants for the file of a split."""
        default = self._spec.folder if split == "test" else f"{self._spec.folder}-{split}"
        return f"{_SUBMISSIONS.get(split, default)}.tsv"

    def _label(self, where: str, text: str) -> int | float | None:
        """The label of a row; None of a bad one that is left out."""
        spec = self._spec
        if spec.labels:
            if text in spec.values:
                return spec.values.index(text)
            known = ", ".join(spec.values)
            self._bad_rows.bad("unknown label", where, f"the label is {text!r}, not one of {known}")
            return None
        number = as_number(text)
        if number is None or not 0 <= number <= _HIGHEST:
            detail = f"{spec.label} is {text!r}, no number from 0 to {_HIGHEST}"
            self._bad_rows.bad("no number", where, detail)
            return None
        return number

    def _tfds_examples(self, split: str) -> Iterator[Example]:
        """In the order of the files that TensorFlow Datasets read."""
        spec, (builder, there) = self._spec, self._builders[split]
        names = builder.info.features["label"]
        columns = spec.tfds or spec.texts
        examples = sorted(sources.tfds_examples(builder, there), key=lambda e: int(e["idx"]))
        for example in examples:
            index = str(int(example["idx"]))
            text, *others = (example[column].decode() for column in columns)
            label = None
            if not split.startswith("test"):
                label = float(example["label"])
                if spec.labels:
                    # By name: TensorFlow Datasets' MNLI has another order.
                    label = spec.labels.index(names.int2str(int(label)))
            where = f"{builder.info.full_name} {there}:{index}"
            yield Example(where, text, others[0] if others else None, label, index)


def check_source(name: str, source: str, *, with_test: bool) -> None:
    """Refuses a folder, or files, in which a task lacks one."""
    if not source.startswith(sources.TFDS_PREFIX):
        names = _MNLI_FILES if SPECS[name] is _MNLI else _FILES
        splits = tuple(sources.find_files(source, names))
        _check_splits(name, source, splits)
        tests = [split for split in names if split.startswith("test")]
        if with_test and not set(tests) & set(splits):
            raise UserError(
                f"config.eval.predict asks for the test split, but {source} has no "
                f"{names[tests[0]][0]}"
            )


def _check_splits(name: str, source: str, splits: tuple[str, ...]) -> None:
    names = _MNLI_FILES if SPECS[name] is _MNLI else _FILES
    needed = [n for n in names if not n.startswith("test") and "mismatched" not in n]
    for split in needed + (["test_ax"] if name == "ax" else []):
        if split not in splits:
            raise UserError(
                f"config.data.input is {source}, where {' or '.join(names[split])} is missing, "
                f"the {split} split of {name}"
            )


def _index(row: Row) -> str:
    """What the leaderboard calls a row of a test set: its first column."""
    name, index = next(iter(row.values.items()))
    if name not in _INDEX:
        raise UserError(
            f"{row.where}: the first column is {name!r}, but that of a test split is "
            f"{' or '.join(_INDEX)}, by which predictions are handed in"
        )
    return index


def as_number(text: str) -> float | None:
    """A number that is finite in float32 too, or None."""
    try:
        # Python's own 1_000 is more likely something else.
        number = float("" if "_" in text else text)
    except ValueError:
        return None
    return number if abs(number) <= float(np.finfo(np.float32).max) else None


def _tfds_splits(name: str, source: str, names: dict) -> dict[str, tuple]:
    """Builder and split there, of each of ours."""
    mnli = source.replace("glue/ax", "glue/mnli") if name == "ax" else source
    builder = sources.tfds_builder(mnli)
    _check_builder(name, builder)
    splits = {split: (builder, split) for split in names if split in builder.info.splits}
    diagnostic = mnli.replace("glue/mnli", "glue/ax")
    # Beside MNLI it is taken where it lies already: nothing is downloaded that was not named.
    if name == "ax" or name == "mnli" and sources.is_prepared(diagnostic):
        splits["test_ax"] = sources.tfds_builder(diagnostic), "test"
    return splits


def _check_builder(name: str, builder: Any) -> None:
    """Refuses another task's data: some tasks differ in nothing else."""
    spec, full_name = SPECS[name], builder.info.full_name
    sources.check_features(builder, (*(spec.tfds or spec.texts), "label", "idx"))
    expected = "mnli" if name == "ax" else name
    is_other = full_name.split("/")[1] in SPECS.keys() - {expected}
    names = getattr(builder.info.features["label"], "names", ())
    if is_other or spec.labels and set(names) != set(spec.labels):
        raise UserError(
            f"config.data.input: {full_name} is not the data of {name} (tfds:glue/{expected})"
        )
