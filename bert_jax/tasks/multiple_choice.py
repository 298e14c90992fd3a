"""Multiple choice: which of several endings or answers is right (the paper's section 4.4).

Each choice is a sequence of its own, `[CLS] context [SEP] choice [SEP]`, and has one logit.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath
from ml_collections import ConfigDict
from scipy.special import softmax

from bert_jax.base import files
from bert_jax.tasks.example_task import ExampleTask
from bert_jax.tasks.task import split_files
from bert_jax.tasks.token_rows import Example, ExampleRows
from bert_jax.text.bad_records import BadRecord, BadRecords, reading_fields
from bert_jax.text.readers import suffix_of
from bert_jax.text.tables import read_rows
from bert_jax.tokenizers import Tokenizer

_SWAG_ENDINGS = ("ending0", "ending1", "ending2", "ending3")


class MultipleChoiceTask(ExampleTask):
    """SWAG, CommonsenseQA and files in their formats; see `Task`.

    A .csv file is in SWAG's format: columns sent1 (the context), sent2 (the beginning of the next
    sentence), ending0 to ending3, and label, 0 to 3. JSON lines, Parquet and Arrow are in this
    format or in CommonsenseQA's: an `id`, a `question`, `choices` with their `label`s and `text`s,
    and `answerKey`. The first version of that format, with `question.stem` and `question.choices`,
    is read too. The choices of all questions must have the same labels as in the first question of
    the training split.
    """

    head = "multiple_choice"
    has_choices = True
    metric = "accuracy"
    file_names = split_files(
        "csv",
        "jsonl",
        "json",
        "parquet",
        "arrow",
        train=("train_rand_split.jsonl",),
        validation=("dev_rand_split.jsonl",),
        test=("test_rand_split_no_answers.jsonl",),
    )

    def __init__(
        self, config: ConfigDict, source: str, tokenizer: Tokenizer, labels: tuple[str, ...] = ()
    ):
        # Each file names its choices.
        super().__init__(config, source, tokenizer)

    def find_labels(self) -> tuple[str, ...]:
        # Reading the first question sets them.
        if self.sources:
            self.rows("train")
        return self.labels

    def examples(
        self, path: Path | epath.Path, split: str, bad_rows: BadRecords
    ) -> Iterator[Example]:
        is_test = split.startswith("test")
        is_swag = suffix_of(path) == ".csv"
        needed = ["sent1", "sent2", *_SWAG_ENDINGS, *([] if is_test else ["label"])]
        rows = read_rows(path, needed if is_swag else (), bad_rows)
        for where, number, values in self.part(split, rows):
            with bad_rows.catching(where):
                with reading_fields():
                    if "sent1" in values:
                        example = values.get("id", str(number)), *swag(values)
                    else:
                        example = values.get("id"), *commonsense_qa(values)
                    checked = self._example(*example, is_test)
                yield checked

    def score_predictions(
        self, rows: ExampleRows, predictions: np.ndarray, logits: np.ndarray | None
    ) -> dict[str, float]:
        """Computes "accuracy", from 0 to 1: the places of the choices are no classes."""
        return {"accuracy": super().score_predictions(rows, predictions, logits)["accuracy"]}

    def write_predictions(
        self, rows: ExampleRows, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes a JSON object per line: `id`, `prediction`, `probabilities` of the choices."""
        probs_NxC = softmax(outputs["logits"].astype(np.float64), axis=-1)
        lines = []
        for id, probs in zip(rows.ids, probs_NxC, strict=True):
            line = {
                "id": id,
                "prediction": self.labels[probs.argmax()],
                "probabilities": dict(zip(self.labels, probs.tolist(), strict=True)),
            }
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        files.write_whole(path, "".join(lines).encode())

    def predictions_name(self, split: str) -> str:
        return f"{split}_predictions.jsonl"

    def _example(
        self, id: str, context: str, choices: dict[str, str], answer: Any, is_test: bool
    ) -> Example:
        """Checks and makes an example; the keys of `choices` are the labels of its choices."""
        names = tuple(choices)
        if not all(text.strip() for text in (context, *choices.values())):
            raise BadRecord("empty sentence", "its question or a choice is empty")
        self.labels = self.labels or names
        if names != self.labels:
            raise BadRecord(
                "other choices",
                f"its choices are {', '.join(names)}, but must be {', '.join(self.labels)} as in "
                "the first question",
            )
        if answer not in names and not is_test:
            detail = f"its answer is {answer!r}, not one of {', '.join(names)}"
            raise BadRecord("unknown label", detail)
        label = names.index(answer) if answer in names else None
        return Example(id, [(context, text) for text in choices.values()], label)


def swag(values: Mapping[str, Any]) -> tuple[str, dict[str, str], str | None]:
    """Reads the context, the choices and the answer of a row of SWAG."""
    # Parquet has null for an empty text, and JSON and Parquet may have numbers as labels.
    values = {key: "" if value is None else str(value) for key, value in values.items()}
    endings = [values[column] for column in _SWAG_ENDINGS]
    choices = {
        str(i): f"{values['sent2']} {ending}".strip() if ending.strip() else ""
        for i, ending in enumerate(endings)
    }
    return values["sent1"], choices, values.get("label")


def commonsense_qa(values: Mapping[str, Any]) -> tuple[str, dict[str, str], Any]:
    """Reads the question, the choices and the answer of a line of CommonsenseQA."""
    question, choices = values["question"], values.get("choices")
    # The first version of the data has the choices in the question.
    if isinstance(question, dict):
        question, choices = question["stem"], question["choices"]
    if isinstance(choices, list):
        choices = {key: [choice[key] for choice in choices] for key in ("label", "text")}
    labels, texts = choices["label"], choices["text"]
    choices = dict(zip(labels, texts, strict=True))
    if len(choices) < 2 or len(choices) < len(labels):
        detail = f"its choices are {', '.join(labels)}: there must be two or more, all different"
        raise BadRecord("other choices", detail)
    return question, choices, values.get("answerKey")
