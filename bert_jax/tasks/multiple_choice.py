"""Multiple choice: which of several endings or answers is right (the paper's section 4.4).

Each choice is a sequence of its own, `[CLS] context [SEP] choice [SEP]`, and has one logit.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from scipy.special import softmax

from bert_jax import files
from bert_jax.data.bad_records import BadRecord
from bert_jax.data.text_files import check_unicode, json_lines, open_text
from bert_jax.data.tfds_source import TFDS_PREFIX
from bert_jax.errors import UserError
from bert_jax.tasks import sources
from bert_jax.tasks.table_files import read_rows
from bert_jax.tasks.task import Task
from bert_jax.tasks.token_rows import TokenRows, tokenized
from bert_jax.tokenizers import Tokenizer

_FILES = {
    "train": ("train.csv", "train_rand_split.jsonl", "train.jsonl"),
    "validation": (
        *("val.csv", "dev.csv", "validation.csv"),
        *("dev_rand_split.jsonl", "dev.jsonl", "val.jsonl", "validation.jsonl"),
    ),
    "test": ("test.csv", "test_rand_split_no_answers.jsonl", "test.jsonl"),
}
_SWAG_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
# Columns of further endings, which SWAG's format does not have.
_FURTHER_ENDING = re.compile("ending([4-9]|[0-9]{2,})")


class Question(NamedTuple):
    """A question as text.

    Attributes:
      id: The name in the data set, for predictions.
      context: The question, or the text that the choices continue.
      choices: The text of each choice by its name, in the order of the logits.
      answer: The name of the right choice; anything else if it is not known.
    """

    id: str
    context: str
    choices: dict[str, str]
    answer: str | None


class MultipleChoiceRows:
    """See `bert_jax.tasks.task.Rows`: [n, C, L] for C choices.

    A choice and its context are cut as a pair.

    Attributes:
      labels_N: int32 [N]; None if not all answers are known.
    """

    def __init__(
        self,
        questions: Iterable[Question],
        num_choices: int,
        tokenizer: Tokenizer,
        max_seq_length: int,
    ):
        self._num_choices = num_choices
        self.ids: list[str] = []
        labels: list[int | None] = []

        def pairs() -> Iterator[tuple[str, str]]:
            for question in questions:
                names = list(question.choices)
                self.ids.append(question.id)
                labels.append(names.index(question.answer) if question.answer in names else None)
                for choice in question.choices.values():
                    yield question.context, choice

        rows = tokenized(pairs(), tokenizer, max_seq_length)
        self._choices = TokenRows(rows, tokenizer, max_seq_length)
        self.labels_N = None if None in labels else np.array(labels, np.int32)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        choices_nxC = np.asarray(indices)[:, None] * self._num_choices + np.arange(
            self._num_choices
        )
        batch = {
            name: array.reshape(*choices_nxC.shape, -1)
            for name, array in self._choices.take(choices_nxC.ravel()).items()
        }
        return batch if self.labels_N is None else batch | {"labels": self.labels_N[indices]}

    def fingerprint_texts(self) -> Iterator[str]:
        return iter(self.ids)


class MultipleChoiceTask(Task):
    """SWAG, CommonsenseQA and files in their formats; see `Task`.

    A .csv file is in SWAG's format: columns sent1 (the context), sent2 (the beginning of the next
    sentence), ending0 to ending3, and label, 0 to 3. A .jsonl file is in CommonsenseQA's: each
    line has an `id`, `question`, `choices` with their `label`s and `text`s, and `answerKey`. Its
    first version, with `question.stem` and `question.choices`, is read too. All questions must
    have the choices of the first one.

    Args:
      source: A folder with the usual file names, such as train.csv and val.csv, or
        train_rand_split.jsonl and dev_rand_split.jsonl; or files,
        "train=FILE,validation=FILE,test=FILE".

    Raises:
      UserError: The data do not exist.
    """

    name = "multiple_choice"
    head = "multiple_choice"
    metric = "accuracy"

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        max_seq_length: int = 128,
        bad_rows: str = "refuse",
    ):
        if source.startswith(TFDS_PREFIX):
            raise UserError(
                f"config.data.input is {source}, but TensorFlow Datasets has neither SWAG nor "
                "CommonsenseQA: give a folder of their files"
            )
        self._files = sources.find_files(source, _FILES)
        super().__init__(tuple(split for split in _FILES if split in self._files), bad_rows)
        self._tokenizer, self._length = tokenizer, max_seq_length
        # The first question that is read decides the names of the choices.
        self.rows(self.splits[0])

    def read_rows(self, split: str) -> MultipleChoiceRows:
        path = self._files[split]
        read = self._read_csv if path.suffix.lower() == ".csv" else self._read_jsonl
        questions = list(read(path, split.startswith("test")))
        if not questions:
            raise UserError(f"{path}: there is no question that can be used")
        return MultipleChoiceRows(questions, len(self.labels), self._tokenizer, self._length)

    def score(self, split: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Returns "accuracy", from 0 to 1."""
        labels_N = self.rows(split).labels_N
        if labels_N is None:
            raise UserError(f"the {split} questions of config.data.input have no known answers")
        return {"accuracy": float(np.mean(outputs["logits"].argmax(axis=-1) == labels_N))}

    def write_predictions(
        self, split: str, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes a JSON object per line: `id`, `prediction`, `probabilities` of the choices."""
        probs_NxC = softmax(outputs["logits"].astype(np.float64), axis=-1)
        lines = []
        for id_, probs in zip(self.rows(split).ids, probs_NxC, strict=True):
            line = {
                "id": id_,
                "prediction": self.labels[probs.argmax()],
                "probabilities": dict(zip(self.labels, probs.tolist(), strict=True)),
            }
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        path = files.open_path(path, "the file of predictions")
        files.write_whole(path, "".join(lines).encode())

    def predictions_name(self, split: str) -> str:
        return f"{split}_predictions.jsonl"

    def _read_csv(self, path: Any, is_test: bool) -> Iterator[Question]:
        needed = ["sent1", "sent2", *_SWAG_ENDINGS, *([] if is_test else ["label"])]
        for row in read_rows(path, needed, self._bad_rows, must_stay=is_test):
            values = row.values
            if further := [name for name in values if _FURTHER_ENDING.fullmatch(name)]:
                raise UserError(
                    f"{path}:1: column {further[0]!r}: this format has four endings, ending0 to "
                    "ending3; use JSON lines for more choices"
                )
            with self._bad_rows.catching(row.where, must_stay=is_test):
                endings = [values[ending] for ending in _SWAG_ENDINGS]
                if not values["sent1"].strip():
                    raise BadRecord("empty sentence", "sent1 is empty")
                if not all(ending.strip() for ending in endings):
                    raise BadRecord("empty sentence", "an ending is empty")
                choices = {
                    str(i): f"{values['sent2']} {ending}".strip()
                    for i, ending in enumerate(endings)
                }
                question = Question(str(row.number), values["sent1"], choices, values.get("label"))
                yield self._checked(question, is_test)

    def _read_jsonl(self, path: Any, is_test: bool) -> Iterator[Question]:
        with open_text(path) as (_, stream):
            for line in json_lines(stream):
                with self._bad_rows.catching(f"{path}:{line.number}", must_stay=is_test):
                    yield self._checked(_parsed(line.parse()), is_test)

    def _checked(self, question: Question, is_test: bool) -> Question:
        names = tuple(question.choices)
        self.labels = self.labels or names
        if names != self.labels:
            raise BadRecord(
                "other choices",
                f"its choices are {', '.join(names)}, but must be {', '.join(self.labels)} as in "
                "the first question",
            )
        if question.answer not in names and not is_test:
            raise BadRecord(
                "unknown label", f"its answer is {question.answer!r}, not one of {', '.join(names)}"
            )
        return question


def _parsed(values: dict[str, Any]) -> Question:
    """Reads a line of CommonsenseQA."""
    question, choices = values.get("question"), values.get("choices")
    if isinstance(question, dict):
        question, choices = question.get("stem"), question.get("choices")
    if isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
        choices = {name: [choice.get(name) for choice in choices] for name in ("label", "text")}
    for name in ("label", "text"):
        column = choices.get(name) if isinstance(choices, dict) else None
        if not isinstance(column, list) or not all(isinstance(text, str) for text in column):
            raise BadRecord("missing field", f"its `choices` have no list of `{name}`s")
    labels, texts = choices["label"], choices["text"]
    if len(labels) != len(texts) or len(labels) < 2 or len(set(labels)) < len(labels):
        raise BadRecord(
            "other choices",
            f"its `choices` have {len(labels)} labels ({', '.join(labels)}) and {len(texts)} "
            "texts: there must be two or more, each with a label of its own",
        )
    if not isinstance(question, str) or not isinstance(values.get("id"), str):
        raise BadRecord("missing field", "it has no text `question`, or no text `id`")
    for text in (values["id"], question, *labels, *texts):
        check_unicode(text, "a text")
    if not all(text.strip() for text in (question, *texts)):
        raise BadRecord("empty sentence", "its question or a choice is empty")
    choices = dict(zip(labels, texts, strict=True))
    return Question(values["id"], question, choices, values.get("answerKey"))
