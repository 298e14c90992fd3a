"""SQuAD's questions, checked and tokenized: of the JSON files, TFDS, or one's own pairs."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax.errors import UserError
from bert_jax.tasks import sources
from bert_jax.tasks.ragged import Ragged
from bert_jax.tasks.sentence_rows import BadRows
from bert_jax.tokenizers import Tokenizer

# The second has questions without an answer.
VERSIONS = ("1.1", "2.0")


class Question(NamedTuple):
    """One question.

    Attributes:
      id: The data set's.
      context: Index of its context in `Questions.contexts`.
      answers: The right answers' texts, none if there is no answer; None: not known.
      span: First and last token of the first answer in the context; None without one.
    """

    id: str
    context: int
    answers: tuple[str, ...] | None
    span: tuple[int, int] | None


class Questions(NamedTuple):
    """The questions of a file and their contexts.

    Attributes:
      with_no_answer: SQuAD 2.0: some have no answer.
      contexts: Texts, each once.
      context_ids: Their tokens.
      context_characters: Rows [T, 2]: where these tokens are in the text.
      questions: In the order of the file.
      question_ids: The tokens of their texts.
    """

    with_no_answer: bool
    contexts: list[str]
    context_ids: Ragged
    context_characters: Ragged
    questions: list[Question]
    question_ids: Ragged


class _Paragraph(NamedTuple):
    """As the file has it, unchecked; `where` says where that is."""

    where: str
    context: Any
    questions: list[Any]


def read_file(
    path: Path | epath.Path,
    tokenizer: Tokenizer,
    bad_rows: BadRows,
    *,
    version: str,
    labelled: bool,
) -> Questions:
    """Reads train-v1.1.json, dev-v2.0.json or what is made like them.

    Args:
      version: One of VERSIONS.
      bad_rows: What is done with bad questions.
      labelled: Every question must tell its answers. Where not, as in a test set, answers are
        not read, and no question is left out.

    Raises:
      UserError: the file is not like these or of another version, or has a bad question:
        without a field, with an answer that is not in the context, or not where
        `answer_start` says.
    """
    content = sources.read_json(path)
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list):
        raise UserError(f"{path} is not SQuAD's JSON: it should be an object with a list `data`")
    paragraphs = list(_paragraphs(path, articles))
    check_version(path, _own_version(content, paragraphs), version)
    reader = _Reader(tokenizer, bad_rows, version == "2.0", labelled)
    for paragraph in paragraphs:
        reader.add(paragraph)
    return reader.result(str(path))


def read_tfds(
    builder: Any,
    split: str,
    tokenizer: Tokenizer,
    bad_rows: BadRows,
    *,
    version: str,
    labelled: bool,
) -> Questions:
    """Reads a split of TFDS' squad/v1.1 or squad/v2.0; see `read_file`."""
    reader = _Reader(tokenizer, bad_rows, version == "2.0", labelled)
    for number, example in enumerate(sources.tfds_examples(builder, split), 1):
        where = f"{builder.info.full_name} {split}:{number}"
        reader.add(_Paragraph(where, *_tfds_paragraph(example)))
    return reader.result(f"{builder.info.full_name} {split}")


def of_pairs(
    pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer, *, with_no_answer: bool = False
) -> Questions:
    """(question, context) pairs to be answered; their ids are "0", "1", ...

    Raises:
      UserError: a question or a context is empty, or there is none.
    """
    reader = _Reader(tokenizer, BadRows(skip=False), with_no_answer, labelled=False)
    for number, (question, context) in enumerate(pairs):
        asked = [{"id": str(number), "question": question}]
        reader.add(_Paragraph(f"pair {number}", context, asked))
    return reader.result("the pairs")


def _paragraphs(path: Path | epath.Path, articles: list[Any]) -> Iterator[_Paragraph]:
    for i, article in enumerate(articles):
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(paragraphs, list):
            raise UserError(f"{path}: data[{i}] should be an object with a list `paragraphs`")
        for j, paragraph in enumerate(paragraphs):
            where = f"{path}: data[{i}].paragraphs[{j}]"
            if not isinstance(paragraph, dict) or not isinstance(paragraph.get("qas"), list):
                raise UserError(f"{where} should be an object with `context` and a list `qas`")
            yield _Paragraph(where, paragraph.get("context"), paragraph["qas"])


def _tfds_paragraph(example: dict[str, Any]) -> tuple[Any, list[Any]]:
    answers = example["answers"]
    question = {
        "id": example["id"].decode(),
        "question": example["question"].decode(),
        "answers": [
            {"text": text.decode(), "answer_start": int(start)}
            for text, start in zip(answers["text"], answers["answer_start"], strict=True)
        ],
    }
    if "is_impossible" in example:
        question["is_impossible"] = bool(example["is_impossible"])
    return example["context"].decode(), [question]


def check_version(source: Any, found: str, asked: str) -> None:
    """Refuses the other data set than `config.squad.version` says; "" found is either."""
    if found and found != asked:
        raise UserError(
            f"{source} is of SQuAD {found}, but config.squad.version is {asked} "
            f"(--config=configs/finetune/squad.py:{found})"
        )


def _own_version(content: dict[str, Any], paragraphs: list[_Paragraph]) -> str:
    """What a file says of itself, or its questions of it; "" where neither does."""
    said = str(content.get("version", "")).removeprefix("v")[:2]
    for version in VERSIONS:
        if said and version.startswith(said):
            return version
    marked = any(
        isinstance(question, dict) and "is_impossible" in question
        for paragraph in paragraphs
        for question in paragraph.questions
    )
    return "2.0" if marked else ""


class _BadQuestion(Exception):
    """What it is counted as, and what it is told as."""

    def __init__(self, reason: str, detail: str):
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


class _Reader:
    """Checks and tokenizes paragraphs as they come."""

    def __init__(
        self, tokenizer: Tokenizer, bad_rows: BadRows, with_no_answer: bool, labelled: bool
    ):
        self._tokenizer, self._bad_rows = tokenizer, bad_rows
        self._with_no_answer, self._labelled = with_no_answer, labelled
        self._contexts: dict[str, int] = {}
        self._context_ids: list[np.ndarray] = []
        self._context_characters: list[np.ndarray] = []
        self._question_ids: list[np.ndarray] = []
        self._known: set[str] = set()
        self.questions: list[Question] = []

    def add(self, paragraph: _Paragraph) -> None:
        for number, question in enumerate(paragraph.questions):
            known = isinstance(question, dict) and isinstance(question.get("id"), str)
            name = f"question {question['id']}" if known else f"qas[{number}]"
            try:
                self._add(paragraph.context, question)
            except _BadQuestion as bad:
                where = f"{paragraph.where}, {name}"
                self._bad_rows.bad(bad.reason, where, bad.detail, must_stay=not self._labelled)

    def result(self, source: str) -> Questions:
        if not self.questions:
            raise UserError(f"{source}: there is no question that can be used")
        return Questions(
            self._with_no_answer,
            list(self._contexts),
            Ragged.of(self._context_ids),
            Ragged.of(self._context_characters, (2,)),
            self.questions,
            Ragged.of(self._question_ids),
        )

    def _add(self, context: Any, question: Any) -> None:
        if not isinstance(question, dict):
            raise _BadQuestion("missing field", "a question should be an object")
        _check_text(context, "context")
        _check_text(question.get("question"), "question")
        _check_text(question.get("id"), "id")
        if question["id"] in self._known:
            raise _BadQuestion("repeated id", "another question has the same id")
        answers = self._answers(question)
        index = self._contexts.get(context)
        tokens = (
            (self._context_ids[index], self._context_characters[index])
            if index is not None
            else self._tokenizer.encode_aligned(context)
        )
        spans = [_span(context, tokens[1], answer) for answer in answers or ()]
        if index is None:
            index = self._contexts[context] = len(self._contexts)
            self._context_ids.append(tokens[0])
            self._context_characters.append(tokens[1])
        texts = None if answers is None else tuple(answer["text"] for answer in answers)
        self._known.add(question["id"])
        self.questions.append(Question(question["id"], index, texts, spans[0] if spans else None))
        self._question_ids += self._tokenizer.encode_batch([question["question"]])

    def _answers(self, question: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Those given, their fields checked; None of a test set, which may withhold them."""
        if not self._labelled:
            return None
        answers = question.get("answers")
        if not isinstance(answers, list):
            raise _BadQuestion("missing field", "it has no list `answers`")
        for answer in answers:
            _check_answer(answer)
        impossible = question.get("is_impossible", not answers)
        if bool(impossible) == bool(answers):
            is_not = "" if impossible else "not "
            raise _BadQuestion(
                "inconsistent is_impossible",
                f"it is {is_not}marked is_impossible, but has {len(answers)} answers",
            )
        if not answers and not self._with_no_answer:
            raise _BadQuestion(
                "no answer", 'it has no answer, as only SQuAD 2.0 ("version": "v2.0") knows'
            )
        return answers


def _check_text(value: Any, name: str) -> None:
    if value is None:
        raise _BadQuestion("missing field", f"it has no text `{name}`")
    if not isinstance(value, str):
        raise _BadQuestion("missing field", f"its `{name}` is {str(value)[:80]}, which is no text")
    if not value.strip():
        raise _BadQuestion(f"empty {name}", f"its `{name}` is empty")
    if not sources.is_encodable(value):
        raise _BadQuestion("invalid UTF-8", f"its `{name}` has a lone surrogate")


def _check_answer(answer: Any) -> None:
    if not (
        isinstance(answer, dict)
        and isinstance(answer.get("text"), str)
        and type(answer.get("answer_start")) is int
    ):
        raise _BadQuestion(
            "missing field", "an answer should have a `text` and a whole number `answer_start`"
        )
    if not answer["text"].strip():
        raise _BadQuestion("empty answer", "an answer's `text` is empty")


def _span(context: str, characters_Tx2: np.ndarray, answer: dict) -> tuple[int, int]:
    """First and last of the tokens that hold any character of the answer."""
    text, start = answer["text"], answer["answer_start"]
    if start < 0 or not context.startswith(text, start):
        at = context.find(text)
        if at < 0:
            raise _BadQuestion(
                "answer not in the context", f"its answer {text!r} is not in the context"
            )
        raise _BadQuestion(
            "wrong offset",
            f"its answer {text!r} does not start at {start} of the context, but at {at}",
        )
    first = int(np.searchsorted(characters_Tx2[:, 1], start, side="right"))
    last = int(np.searchsorted(characters_Tx2[:, 0], start + len(text))) - 1
    if last < first:
        raise _BadQuestion("answer without tokens", f"its answer {text!r} has no token")
    return first, last
