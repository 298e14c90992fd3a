"""Reads, checks and tokenizes SQuAD's questions from its JSON files or TensorFlow Datasets."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax.data.bad_records import BadRecord, BadRecords
from bert_jax.data.text_files import check_unicode, read_text
from bert_jax.errors import UserError
from bert_jax.tasks.sources import TfdsSplit
from bert_jax.tokenizers import Tokenizer


class Context(NamedTuple):
    """A text that contains answers to questions.

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


def read_file(path: Path | epath.Path, version: str) -> Iterator[tuple[str, Any, Any]]:
    """Yields the place, the context and the JSON of each question of a file, not yet checked.

    Raises:
      UserError: The file is not in the format of train-v1.1.json, or of another version.
    """
    try:
        content = json.loads(read_text(path))
        paragraphs = [
            (f"{path}: data[{i}].paragraphs[{j}]", paragraph["context"], list(paragraph["qas"]))
            for i, article in enumerate(content["data"])
            for j, paragraph in enumerate(article["paragraphs"])
        ]
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a complete JSON file: {error}") from None
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not SQuAD's JSON, an object with a list `data` of objects with a list "
            f"`paragraphs` of objects with `context` and `qas`: {type(error).__name__}: {error}"
        ) from None
    declared = {"1": "1.1", "2": "2.0"}.get(str(content.get("version", "")).removeprefix("v")[:1])
    raws = (raw for _, _, raws in paragraphs for raw in raws)
    if not declared and any(isinstance(raw, dict) and "is_impossible" in raw for raw in raws):
        declared = "2.0"
    check_version(path, declared or version, version)
    for where, context, raws in paragraphs:
        for k, raw in enumerate(raws):
            yield f"{where}.qas[{k}]", context, raw


def read_tfds(split: TfdsSplit) -> Iterator[tuple[str, Any, Any]]:
    """Like `read_file`, for a split of squad/v1.1 or squad/v2.0 of TensorFlow Datasets."""
    for where, example in split.examples():
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
        yield where, example["context"].decode(), question


def check_version(source: Any, found: str, version: str) -> None:
    """Refuses data of another version than `config.squad.version`."""
    if found != version:
        raise UserError(
            f"{source} is of SQuAD {found}, but config.squad.version is {version} "
            f"(--config=configs/finetune/squad.py:{found})"
        )


def tokenized_questions(
    questions: Iterable[tuple[str, Any, Any]],
    tokenizer: Tokenizer,
    bad_rows: BadRecords,
    *,
    version: str,
    is_test: bool,
) -> list[Question]:
    """Checks and tokenizes questions.

    Args:
      questions: From `read_file` or `read_tfds`.
      tokenizer: The tokenizer of the model.
      bad_rows: Handles questions that lack a field, or have an answer that is not in the
        context, or not at its `answer_start`.
      version: "1.1"; or "2.0", in which questions may have no answer.
      is_test: Whether this is a test set, whose answers are not read and whose questions are
        never left out.
    """
    contexts: dict[str, Context] = {}
    found: dict[str, Question] = {}
    for where, text, raw in questions:
        raw = raw if isinstance(raw, dict) else {}
        id = raw.get("id")
        with bad_rows.catching(f"{where}, question {id}", must_stay=is_test):
            for name, value in (("context", text), ("question", raw.get("question")), ("id", id)):
                if not isinstance(value, str) or not value.strip():
                    raise BadRecord("missing field", f"it has no text `{name}`")
                check_unicode(value, f"its `{name}`")
            if id in found:
                raise BadRecord("repeated id", "another question has the same id")
            answers = [] if is_test else _answers(raw, version)
            if text not in contexts:
                contexts[text] = Context(text, *tokenizer.encode_aligned(text))
            spans = [_span(contexts[text], *answer) for answer in answers]
            found[id] = Question(
                id,
                tokenizer.encode_batch([raw["question"]])[0],
                contexts[text],
                None if is_test else tuple(answer for answer, _ in answers),
                spans[0] if spans else None,
            )
    return list(found.values())


def _answers(question: dict[str, Any], version: str) -> list[tuple[str, int]]:
    """Returns the text and the first character of each answer."""
    try:
        answers = [(answer["text"], answer["answer_start"]) for answer in question["answers"]]
        is_whole = all(text.strip() and type(start) is int for text, start in answers)
    except (KeyError, TypeError, AttributeError):
        is_whole = False
    if not is_whole:
        raise BadRecord(
            "missing field",
            "it must have a list `answers`, with a `text` and a whole number `answer_start` each",
        )
    impossible = question.get("is_impossible", not answers)
    if bool(impossible) == bool(answers):
        detail = f"its is_impossible is {impossible}, but it has {len(answers)} answers"
        raise BadRecord("inconsistent is_impossible", detail)
    if not answers and version != "2.0":
        detail = 'it has no answer, which only SQuAD 2.0 ("version": "v2.0") allows'
        raise BadRecord("no answer", detail)
    return answers


def _span(context: Context, text: str, start: int) -> tuple[int, int]:
    """Returns the first and last token that hold any character of an answer."""
    if start < 0 or not context.text.startswith(text, start):
        position = context.text.find(text)
        if position < 0:
            detail = f"its answer {text!r} is not in the context"
            raise BadRecord("answer not in the context", detail)
        detail = f"its answer {text!r} starts at character {position} of the context, not {start}"
        raise BadRecord("wrong offset", detail)
    first = int(np.searchsorted(context.characters_Tx2[:, 1], start, side="right"))
    last = int(np.searchsorted(context.characters_Tx2[:, 0], start + len(text))) - 1
    if last < first:
        raise BadRecord("answer without tokens", f"its answer {text!r} has no token")
    return first, last
