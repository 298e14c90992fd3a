"""Reads, checks and tokenizes SQuAD's questions from its JSON files or TensorFlow Datasets."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax.data import tfds_source
from bert_jax.data.bad_records import BadRecord, BadRecords
from bert_jax.data.text_files import check_unicode, read_text
from bert_jax.errors import UserError
from bert_jax.tokenizers import Tokenizer

# Questions of the second may have no answer.
VERSIONS = ("1.1", "2.0")


class Context(NamedTuple):
    """A text that answers questions.

    Attributes:
      text: The text.
      ids: Its tokens, int32 [T].
      characters_Tx2: The place of each token in the text, [start, end).
    """

    text: str
    ids: np.ndarray
    characters_Tx2: np.ndarray


class Question(NamedTuple):
    """One question.

    Attributes:
      id: The name in the data set.
      ids: The tokens of the question.
      context: The text with the answer.
      answers: The texts of the right answers, none if there is no answer; None if not known.
      span: The first and last token of the first answer in the context; None without one.
    """

    id: str
    ids: np.ndarray
    context: Context
    answers: tuple[str, ...] | None = None
    span: tuple[int, int] | None = None


class Paragraph(NamedTuple):
    """A context with its questions as the file has them, not yet checked.

    Attributes:
      where: The place in the file.
    """

    where: str
    context: Any
    questions: list[Any]


def read_file(path: Path | epath.Path, version: str) -> list[Paragraph]:
    """Reads train-v1.1.json, dev-v2.0.json or a file in their format.

    Raises:
      UserError: The file has another format, or is of another version of SQuAD.
    """
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a whole JSON file: {error}") from None
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list):
        raise UserError(f"{path} is not SQuAD's JSON: it should be an object with a list `data`")
    paragraphs = []
    for i, article in enumerate(articles):
        entries = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(entries, list):
            raise UserError(f"{path}: data[{i}] should be an object with a list `paragraphs`")
        for j, entry in enumerate(entries):
            where = f"{path}: data[{i}].paragraphs[{j}]"
            if not isinstance(entry, dict) or not isinstance(entry.get("qas"), list):
                raise UserError(f"{where} should be an object with `context` and a list `qas`")
            paragraphs.append(Paragraph(where, entry.get("context"), entry["qas"]))
    check_version(path, _own_version(content, paragraphs), version)
    return paragraphs


def read_tfds(builder: Any, split: str) -> Iterator[Paragraph]:
    """Reads a split of squad/v1.1 or squad/v2.0 of TensorFlow Datasets."""
    for number, example in enumerate(tfds_source.examples(builder, split), 1):
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
        where = f"{builder.info.full_name} {split}:{number}"
        yield Paragraph(where, example["context"].decode(), [question])


def check_version(source: Any, found: str, version: str) -> None:
    """Refuses data of another version than `config.squad.version`; "" is either."""
    if found and found != version:
        raise UserError(
            f"{source} is of SQuAD {found}, but config.squad.version is {version} "
            f"(--config=configs/finetune/squad.py:{found})"
        )


def _own_version(content: dict[str, Any], paragraphs: list[Paragraph]) -> str:
    """Returns the version that a file declares, or that its questions show; "" if neither."""
    declared = str(content.get("version", "")).removeprefix("v")[:2]
    for version in VERSIONS:
        if declared and version.startswith(declared):
            return version
    questions = (question for paragraph in paragraphs for question in paragraph.questions)
    marked = any(
        isinstance(question, dict) and "is_impossible" in question for question in questions
    )
    return "2.0" if marked else ""


def tokenized_questions(
    paragraphs: Iterable[Paragraph],
    tokenizer: Tokenizer,
    bad_rows: BadRecords,
    *,
    version: str,
    is_test: bool,
) -> list[Question]:
    """Checks and tokenizes questions.

    Args:
      version: One of VERSIONS.
      is_test: Whether this is a test set, whose answers are not read and whose questions are
        never left out.

    Raises:
      UserError: A question is bad: it lacks a field, or has an answer that is not in the
        context, or not at its `answer_start`.
    """
    contexts: dict[str, Context] = {}
    questions: dict[str, Question] = {}
    for paragraph in paragraphs:
        for number, raw in enumerate(paragraph.questions):
            is_named = isinstance(raw, dict) and isinstance(raw.get("id"), str)
            name = f"question {raw['id']}" if is_named else f"qas[{number}]"
            with bad_rows.catching(f"{paragraph.where}, {name}", must_stay=is_test):
                if not isinstance(raw, dict):
                    raise BadRecord("missing field", "a question should be an object")
                _check_text(paragraph.context, "context")
                _check_text(raw.get("question"), "question")
                _check_text(raw.get("id"), "id")
                if raw["id"] in questions:
                    raise BadRecord("repeated id", "another question has the same id")
                answers = [] if is_test else _answers(raw, version)
                text = paragraph.context
                if text not in contexts:
                    contexts[text] = Context(text, *tokenizer.encode_aligned(text))
                spans = [_span(contexts[text], answer) for answer in answers]
                questions[raw["id"]] = Question(
                    raw["id"],
                    tokenizer.encode_batch([raw["question"]])[0],
                    contexts[text],
                    None if is_test else tuple(answer["text"] for answer in answers),
                    spans[0] if spans else None,
                )
    return list(questions.values())


def _answers(question: dict[str, Any], version: str) -> list[dict[str, Any]]:
    answers = question.get("answers")
    if not isinstance(answers, list):
        raise BadRecord("missing field", "it has no list `answers`")
    for answer in answers:
        is_whole = (
            isinstance(answer, dict)
            and isinstance(answer.get("text"), str)
            and type(answer.get("answer_start")) is int
        )
        if not is_whole:
            detail = "an answer should have a `text` and a whole number `answer_start`"
            raise BadRecord("missing field", detail)
        if not answer["text"].strip():
            raise BadRecord("empty answer", "an answer's `text` is empty")
    impossible = question.get("is_impossible", not answers)
    if bool(impossible) == bool(answers):
        is_not = "" if impossible else "not "
        raise BadRecord(
            "inconsistent is_impossible",
            f"it is {is_not}marked is_impossible, but has {len(answers)} answers",
        )
    if not answers and version != "2.0":
        detail = 'it has no answer, which only SQuAD 2.0 ("version": "v2.0") allows'
        raise BadRecord("no answer", detail)
    return answers


def _check_text(value: Any, name: str) -> None:
    if value is None:
        raise BadRecord("missing field", f"it has no text `{name}`")
    if not isinstance(value, str):
        raise BadRecord("missing field", f"its `{name}` is {str(value)[:80]}, not a text")
    if not value.strip():
        raise BadRecord(f"empty {name}", f"its `{name}` is empty")
    check_unicode(value, f"its `{name}`")


def _span(context: Context, answer: dict) -> tuple[int, int]:
    """Returns the first and last token that hold any character of the answer."""
    text, start = answer["text"], answer["answer_start"]
    if start < 0 or not context.text.startswith(text, start):
        position = context.text.find(text)
        if position < 0:
            detail = f"its answer {text!r} is not in the context"
            raise BadRecord("answer not in the context", detail)
        detail = f"its answer {text!r} does not start at {start} of the context, but at {position}"
        raise BadRecord("wrong offset", detail)
    first = int(np.searchsorted(context.characters_Tx2[:, 1], start, side="right"))
    last = int(np.searchsorted(context.characters_Tx2[:, 0], start + len(text))) - 1
    if last < first:
        raise BadRecord("answer without tokens", f"its answer {text!r} has no token")
    return first, last
