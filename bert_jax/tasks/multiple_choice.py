"""Multiple choice: which of some endings or answers is right (the paper's section 4.4).

Each choice is a row of its own, [CLS] context [SEP] choice [SEP], and has one logit.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from etils import epath

from bert_jax import files
from bert_jax.errors import UserError
from bert_jax.tasks import sources
from bert_jax.tasks.readers import read_rows
from bert_jax.tasks.sentence_rows import BadRows, Example, SentenceRows
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
# Further ones, which the format does not have.
_ENDING = re.compile("ending([4-9]|[0-9]{2,})")
_SWAG_LABELS = ("0", "1", "2", "3")


class Question(NamedTuple):
    """A question as text.

    Attributes:
      where: FILE:LINE.
      id: The data set's, for predictions.
      context: What the choices are about, or go on from.
      choices: In the order of the logits.
      label: Index of the right one; None where it is not known.
    """

    where: str
    id: str
    context: str
    choices: tuple[str, ...]
    label: int | None


class MultipleChoiceRows:
    """See `bert_jax.tasks.task.Rows`: [n, C, L] of C choices.

    Of a choice that is too long with its context the longer of the two loses its last token
    until they fit.
    """

    def __init__(
        self,
        questions: Iterator[Question],
        num_choices: int,
        tokenizer: Tokenizer,
        max_seq_length: int,
    ):
        self._num_choices = num_choices
        self.ids: list[str] = []
        labels: list[int | None] = []

        def pairs() -> Iterator[Example]:
            for question in questions:
                self.ids.append(question.id)
                labels.append(question.label)
                for choice in question.choices:
                    yield Example(question.where, question.context, choice, None, question.id)

        self._pairs = SentenceRows(pairs(), tokenizer, max_seq_length)
        # int32 [N]; None where they are not known.
        self.labels_N = None if None in labels else np.array(labels, np.int32)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """See `bert_jax.tasks.task.Rows`; without labels where they are not known."""
        pairs_nxC = np.asarray(indices)[:, None] * self._num_choices + np.arange(self._num_choices)
        batch = self._pairs.take(pairs_nxC.ravel())
        del batch["labels"]
        batch = {
            name: array.reshape(*pairs_nxC.shape, array.shape[-1]) for name, array in batch.items()
        }
        if self.labels_N is not None:
            batch["labels"] = self.labels_N[indices]
        return batch

    def fingerprint_texts(self) -> Iterator[str]:
        return iter(self.ids)


class MultipleChoice:
    """SWAG, CommonsenseQA and what is made like them; see `bert_jax.tasks.task.Task`.

    A .csv file is SWAG's: columns sent1 (the context), sent2 (how the next sentence begins),
    ending0 to ending3, and label, 0 to 3. A .jsonl file is CommonsenseQA's: each line has an
    `id`, `question`, `choices` with their `label`s and `text`s, and `answerKey`; its first
    version, with `question.stem` and `question.choices`, is read too. All questions have as
    many choices as the first one.

    Args:
      source: A folder with the files' usual names, such as train.csv and val.csv, or
        train_rand_split.jsonl and dev_rand_split.jsonl; or files, as
        "train=FILE,validation=FILE,test=FILE".
      tokenizer: That of the model.
      max_seq_length: Tokens of a row.
      bad_rows: "refuse" or "skip".

    Raises:
      UserError: the data are not there.
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
        sources.check_bad_rows(bad_rows)
        if source.startswith(sources.TFDS_PREFIX):
            raise UserError(
                f"config.data.input is {source}, but TensorFlow Datasets has neither SWAG nor "
                "CommonsenseQA: give a folder of their files"
            )
        self._files = sources.find_files(source, _FILES)
        self.splits = tuple(split for split in _FILES if split in self._files)
        self._tokenizer, self._length = tokenizer, max_seq_length
        self._bad_rows = BadRows(bad_rows == "skip")
        self.labels = _choice_names(self._files[self.splits[0]])
        self._rows: dict[str, MultipleChoiceRows] = {}

    @property
    def dropped(self) -> Counter[str]:
        """Bad questions left out, by reason, of the splits read so far."""
        return self._bad_rows.dropped

    def rows(self, split: str) -> MultipleChoiceRows:
        """The questions of a split."""
        if split not in self._rows:
            path, must_stay = self._files[split], split.startswith("test")
            read = _read_csv if _is_csv(path) else _read_jsonl
            questions = read(path, self._bad_rows, self.labels, must_stay)
            rows = MultipleChoiceRows(questions, len(self.labels), self._tokenizer, self._length)
            if not len(rows):
                raise UserError(f"{path}: there is no question that can be used")
            self._rows[split] = rows
        return self._rows[split]

    def score(self, split: str, outputs: dict[str, np.ndarray]) -> dict[str, float]:
        """Returns "accuracy", from 0 to 1."""
        right_N = self.rows(split).labels_N
        if right_N is None:
            raise UserError(f"the {split} questions of config.data.input do not tell their answers")
        return {"accuracy": float(np.mean(outputs["logits"].argmax(axis=-1) == right_N))}

    def write_predictions(
        self, split: str, outputs: dict[str, np.ndarray], path: epath.PathLike
    ) -> None:
        """Writes a JSON object a line: `id`, `prediction`, `probabilities` of the choices."""
        logits_NxC = outputs["logits"].astype(np.float64)
        probs_NxC = np.exp(logits_NxC - logits_NxC.max(axis=-1, keepdims=True))
        probs_NxC /= probs_NxC.sum(axis=-1, keepdims=True)
        lines = [
            json.dumps(
                {
                    "id": id_,
                    "prediction": self.labels[probs.argmax()],
                    "probabilities": dict(zip(self.labels, probs.tolist(), strict=True)),
                },
                ensure_ascii=False,
            )
            for id_, probs in zip(self.rows(split).ids, probs_NxC, strict=True)
        ]
        path = files.open_path(path, "the predictions' file")
        files.write_whole(path, "".join(f"{line}\n" for line in lines).encode())

    def predictions_name(self, split: str) -> str:
        """The name of the file that `write_predictions` is given for a split."""
        return f"{split}_predictions.jsonl"


def _is_csv(path: Path | epath.Path) -> bool:
    return path.suffix.lower() == ".csv"


def _choice_names(path: Path | epath.Path) -> tuple[str, ...]:
    """What the choices are called: in CommonsenseQA's files by the first whole question."""
    if _is_csv(path):
        return _SWAG_LABELS
    first = ""
    for where, line in _lines(path):
        try:
            return tuple(_parse(line).choices)
        except _BadQuestion as bad:
            # It is told, or counted, when the rows are read.
            first = first or f"; the first, {where}: {bad.detail}"
    raise UserError(f"{path}: there is no question that can be used{first}")


def _read_csv(
    path: Path | epath.Path, bad_rows: BadRows, names: Sequence[str], must_stay: bool
) -> Iterator[Question]:
    needed = ["sent1", "sent2", *_SWAG_ENDINGS, *([] if must_stay else ["label"])]
    for row in read_rows(path, needed, bad_rows, must_stay=must_stay):
        values = row.values
        if further := [name for name in values if _ENDING.fullmatch(name)]:
            raise UserError(
                f"{path}:1: column {further[0]!r}: this format has four endings, "
                f"{_SWAG_ENDINGS[0]} to {_SWAG_ENDINGS[-1]}; of more choices there are JSON lines"
            )
        endings = [values[ending] for ending in _SWAG_ENDINGS]
        try:
            if not values["sent1"].strip():
                raise _BadQuestion("empty sentence", "sent1 is empty")
            if not all(ending.strip() for ending in endings):
                raise _BadQuestion("empty sentence", "an ending is empty")
            label = _label(values.get("label"), names, must_stay)
        except _BadQuestion as bad:
            bad_rows.bad(bad.reason, row.where, bad.detail, must_stay)
            continue
        choices = tuple(f"{values['sent2']} {ending}".strip() for ending in endings)
        yield Question(row.where, str(row.number), values["sent1"], choices, label)


def _read_jsonl(
    path: Path | epath.Path, bad_rows: BadRows, names: Sequence[str], must_stay: bool
) -> Iterator[Question]:
    for where, line in _lines(path):
        try:
            parsed = _parse(line)
            if list(parsed.choices) != list(names):
                raise _BadQuestion(
                    "other choices",
                    f"its choices are {', '.join(parsed.choices)}, but must be "
                    f"{', '.join(names)} as in the first question",
                )
            label = _label(parsed.answer, names, must_stay)
        except _BadQuestion as bad:
            bad_rows.bad(bad.reason, where, bad.detail, must_stay)
            continue
        texts = tuple(parsed.choices.values())
        yield Question(where, parsed.id, parsed.question, texts, label)


class _BadQuestion(Exception):
    """What it is counted as, and what it is told as."""

    def __init__(self, reason: str, detail: str):
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class _Parsed(NamedTuple):
    """A line of CommonsenseQA's: the choices' texts by their names, the answer's name."""

    id: str
    question: str
    choices: dict[str, str]
    answer: str | None


def _lines(path: Path | epath.Path) -> Iterator[tuple[str, str]]:
    """FILE:LINE and content of the lines that are not blank."""
    for number, line in enumerate(sources.read_text(path).split("\n"), 1):
        if line.strip():
            yield f"{path}:{number}", line


def _parse(line: str) -> _Parsed:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadQuestion("broken JSON", f"not a JSON object: {error}") from None
    if not isinstance(values, dict):
        raise _BadQuestion("broken JSON", "not a JSON object")
    question, choices = values.get("question"), values.get("choices")
    if isinstance(question, dict):
        question, choices = question.get("stem"), question.get("choices")
    if isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
        choices = {name: [choice.get(name) for choice in choices] for name in ("label", "text")}
    for name in ("label", "text"):
        column = choices.get(name) if isinstance(choices, dict) else None
        if not isinstance(column, list) or not all(isinstance(text, str) for text in column):
            raise _BadQuestion("missing field", f"its `choices` have no list of `{name}`s")
    labels, texts = choices["label"], choices["text"]
    if len(labels) != len(texts) or len(labels) < 2 or len(set(labels)) < len(labels):
        raise _BadQuestion(
            "other choices",
            f"its `choices` have {len(labels)} labels ({', '.join(labels)}) and {len(texts)} "
            "texts: there must be two or more, each with a label of its own",
        )
    if not isinstance(question, str) or not isinstance(values.get("id"), str):
        raise _BadQuestion("missing field", "it has no text `question`, or no text `id`")
    if not all(text.strip() for text in (question, *texts)):
        raise _BadQuestion("empty sentence", "its question or a choice is empty")
    if not all(map(sources.is_encodable, (values["id"], question, *labels, *texts))):
        raise _BadQuestion("invalid UTF-8", "a text has a lone surrogate")
    return _Parsed(
        values["id"], question, dict(zip(labels, texts, strict=True)), values.get("answerKey")
    )


def _label(answer: str | None, names: Sequence[str], may_lack: bool) -> int | None:
    """The index of the answer's name."""
    if answer in names:
        return names.index(answer)
    if may_lack:
        return None
    raise _BadQuestion("unknown label", f"its answer is {answer!r}, not one of {', '.join(names)}")
