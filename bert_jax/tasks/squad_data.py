"""Reads, checks and tokenizes SQuAD's questions from its JSON files."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tasks.token_rows import TokenRows
from bert_jax.text.bad_records import BadRecord, BadRecords, reading_fields
from bert_jax.text.readers import read_text, suffix_of
from bert_jax.text.tables import read_rows
from bert_jax.tokenizers import Tokenizer, TokenRow


class Context(NamedTuple):
    """A text that contains answers to questions.

    Attributes:
      ids: Its tokens, int32 [T].
      characters_Tx2: The position of each token in the text, [start, end).
    """

    text: str
    ids: np.ndarray
    characters_Tx2: np.ndarray


class Question(NamedTuple):
    """One question.

    Attributes:
      answers: The texts of the right answers, none if there is no answer; None if not known.
      span: The first and last token of the first answer in the context; None without one.
    """

    id: str
    ids: np.ndarray
    context: Context
    answers: tuple[str, ...] | None = None
    span: tuple[int, int] | None = None


def read_file(
    path: Path | epath.Path, bad_rows: BadRecords, version: str | None = None
) -> Iterator[tuple[str, Any, Any]]:
    """Yields the position, the context and the JSON of each question of a file, not yet checked.

    The file is in the format of train-v1.1.json, or has questions with a context each, as
    `datasets` exports them: JSON lines, an array in JSON, Parquet or Arrow.
    """
    content = None
    if suffix_of(path) not in (".parquet", ".arrow") and path.exists():
        with contextlib.suppress(ValueError):
            content = json.loads(read_text(path))
    if not (isinstance(content, dict) and "data" in content):
        yield from _read_objects(path, bad_rows)
        return
    with files.naming(path):
        paragraphs = [
            (f"{path}: data[{i}].paragraphs[{j}]", paragraph["context"], list(paragraph["qas"]))
            for i, article in enumerate(content["data"])
            for j, paragraph in enumerate(article["paragraphs"])
        ]
        raws = (raw for _, _, raws in paragraphs for raw in raws)
        is_2 = any(raw.get("is_impossible") and not raw.get("answers") for raw in raws)
    if version and is_2:
        check_version(path, "2.0", version)
    elif version and str(content.get("version", "")).removeprefix("v").startswith("1"):
        check_version(path, "1.1", version)
    # Otherwise every question has an answer, as in 1.1, and 2.0 allows that too.
    for where, context, raws in paragraphs:
        for k, raw in enumerate(raws):
            yield f"{where}.qas[{k}]", context, raw


def _read_objects(path: Path | epath.Path, bad_rows: BadRecords) -> Iterator[tuple[Any, Any, Any]]:
    for where, _, raw in read_rows(path, (), bad_rows):
        if isinstance(answers := raw.get("answers"), dict):
            starts = answers.get("answer_start") or ()
            pairs = zip(answers.get("text") or (), starts, strict=False)
            raw["answers"] = [{"text": text, "answer_start": start} for text, start in pairs]
        yield where, raw.get("context"), raw


def check_version(source: Any, found: str, version: str) -> None:
    """Refuses data whose version is not `config.squad.version`."""
    if found != version:
        raise UserError(
            f"{source} is SQuAD {found}, but config.squad.version is {version} "
            f"(--config=configs/finetune/squad.py:{found})"
        )


def tokenized_questions(
    questions: Iterable[tuple[str, Any, Any]],
    tokenizer: Tokenizer,
    bad_rows: BadRecords,
    *,
    version: str,
    split: str,
) -> list[Question]:
    """Checks and tokenizes questions.

    Args:
      bad_rows: Handles questions that lack a field, or have an answer that is not in the
        context, or not at its `answer_start`. An answer that occurs once is used where it occurs.
      version: "1.1"; or "2.0", in which questions may have no answer.
      split: In a test split, answers are not read. In a validation split, a question with an answer
        that cannot be found is kept, because the official scripts compare only texts.
    """
    is_test = split.startswith("test")
    contexts: dict[str, Context] = {}
    found: dict[str, Question] = {}
    for where, text, raw in questions:
        asked = f"{where}, question {raw.get('id')}"
        with bad_rows.catching(asked):
            with reading_fields():
                id, is_empty = str(raw["id"]), not (text.strip() and raw["question"].strip())
                answers = [] if is_test or is_empty else _answers(raw, version)
            if is_empty:
                raise BadRecord("empty text", "its context or its question is empty")
            if id in found:
                raise BadRecord("repeated id", "another question has the same id")
            if text not in contexts:
                contexts[text] = Context(text, *tokenizer.encode_aligned(text))
            span = None
            try:
                found_at = [_find(text, *answer) for answer in answers]
                spans = [_span(contexts[text], *found) for found in found_at]
                span = spans[0] if spans else None
                if [start for start, _ in found_at] != [start for _, start in answers]:
                    bad_rows.dropped["wrong offset, repaired"] += 1
            except BadRecord as bad:
                if not split.startswith("validation"):
                    raise
                kept = BadRecord(f"{bad.reason}, kept for the score", bad.detail)
                bad_rows.add(kept, asked)
            found[id] = Question(
                id,
                tokenizer.encode_batch([raw["question"]])[0],
                contexts[text],
                None if is_test else tuple(answer for answer, _ in answers),
                span,
            )
    return list(found.values())


def _answers(question: dict[str, Any], version: str) -> list[tuple[str, Any]]:
    answers = [(str(answer["text"]), answer.get("answer_start")) for answer in question["answers"]]
    if not answers and version != "2.0":
        detail = 'it has no answer, which only SQuAD 2.0 ("version": "v2.0") allows'
        raise BadRecord("no answer", detail)
    return answers


def _find(context: str, text: str, start: Any) -> tuple[int, int]:
    """Finds an answer in its context: its first character, and the character after its last.

    An answer that is not at `start` is used where it occurs, if it occurs once. Any white space
    matches any other.
    """
    if type(start) is int and start >= 0 and context.startswith(text, start):
        return start, start + len(text)
    pattern = re.compile(r"\s+".join(map(re.escape, text.split())))
    found = list(pattern.finditer(context))
    at_start = [match for match in found if match.start() == start]
    if not found:
        raise BadRecord("answer not in the context", f"its answer {text!r} is not in the context")
    if len(found) > 1 and not at_start:
        detail = f"its answer {text!r} occurs {len(found)} times, but not at character {start}"
        raise BadRecord("wrong offset", detail)
    return (at_start or found)[0].span()


def _span(context: Context, start: int, end: int) -> tuple[int, int]:
    """Finds the first and the last token with a character from `start` to `end`."""
    first = int(np.searchsorted(context.characters_Tx2[:, 1], start, side="right"))
    last = int(np.searchsorted(context.characters_Tx2[:, 0], end)) - 1
    if last < first:
        text = context.text[start:end]
        raise BadRecord("answer without tokens", f"its answer {text!r} has no token")
    return first, last


class Windows(TokenRows):
    """Rows of questions with windows of their contexts; see `TokenRows`.

    Args:
      questions: At least one.
      max_seq_length: The length of a row; at least `max_query_length` plus the special
        tokens plus one.

    Attributes:
      question_N: The question of each row.
      first_token_N, num_tokens_N: The first of the row's tokens in the context, and their number.
      prefix_N: The position in the row at which the context starts.
      row_starts: Question q has the rows row_starts[q] to row_starts[q + 1].
    """

    def __init__(
        self,
        questions: Sequence[Question],
        tokenizer: Tokenizer,
        *,
        max_seq_length: int,
        doc_stride: int,
        max_query_length: int,
    ):
        self.questions = questions
        template = tokenizer.template
        table: list[tuple[int, int, int, int]] = []

        def rows() -> Iterator[TokenRow]:
            for number, question in enumerate(questions):
                asked, context = question.ids[:max_query_length], question.context.ids
                prefix = template.second_offset(len(asked))
                room = max_seq_length - template.num_special(is_pair=True) - len(asked)
                for start, length in _cut(len(context), room, doc_stride):
                    table.append((number, start, length, prefix))
                    yield tokenizer.join(asked, context[start : start + length])

        super().__init__(rows(), tokenizer, max_seq_length)
        columns = np.array(table, np.int64).T
        self.question_N, self.first_token_N, self.num_tokens_N, self.prefix_N = columns
        self.row_starts = np.searchsorted(self.question_N, np.arange(len(questions) + 1))
        self._max_query_length = max_query_length
        self._has_labels = all(question.answers is not None for question in questions)

    def truncated(self) -> str:
        cut = sum(len(question.ids) > self._max_query_length for question in self.questions)
        if not cut:
            return ""
        return (
            f"{cut:,} of {len(self.questions):,} questions are truncated to "
            f"{self._max_query_length} tokens (config.squad.max_query_length)"
        )

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """See `TokenRows.take`.

        The labels are the positions of the first answer, or 0 ([CLS]) if the row does not contain
        all of it. They are absent if the answers of any question are not known.
        """
        batch = super().take(indices)
        if self._has_labels:
            spans_nx2 = np.array([self._label(int(i)) for i in indices], np.int32).reshape(-1, 2)
            batch["start_positions"], batch["end_positions"] = spans_nx2.T
        return batch

    def fingerprint_texts(self) -> Iterator[str]:
        yield from dict.fromkeys(question.context.text for question in self.questions)
        for question in self.questions:
            yield question.id
            yield from question.answers or ()

    def rows_of(self, question: int) -> range:
        return range(self.row_starts[question], self.row_starts[question + 1])

    def is_max_context(self, row: int) -> np.ndarray:
        """Returns whether each token has more context in this row than in any other, bool [T].

        The context is the smaller number of tokens on its left and right, plus a hundredth of
        the window's length. The first of equally good rows counts.
        """
        rows = self.rows_of(self.question_N[row])
        rows_R = np.array(rows)
        start, num = self.first_token_N[row], self.num_tokens_N[row]
        left_RxT = np.arange(start, start + num) - self.first_token_N[rows_R, None]
        right_RxT = self.num_tokens_N[rows_R, None] - 1 - left_RxT
        score_RxT = np.minimum(left_RxT, right_RxT) + 0.01 * self.num_tokens_N[rows_R, None]
        inside_RxT = (left_RxT >= 0) & (right_RxT >= 0)
        best_T = np.argmax(np.where(inside_RxT, score_RxT, -np.inf), axis=0)
        return rows.start + best_T == row

    def characters(self, row: int, first: int, last: int) -> tuple[int, int]:
        """Returns the characters of the context in tokens `first` to `last` of a window."""
        characters_Tx2 = self.questions[self.question_N[row]].context.characters_Tx2
        start = self.first_token_N[row]
        return int(characters_Tx2[start + first, 0]), int(characters_Tx2[start + last, 1])

    def _label(self, row: int) -> tuple[int, int]:
        span = self.questions[self.question_N[row]].span
        start, num = self.first_token_N[row], self.num_tokens_N[row]
        if span is None or span[0] < start or span[1] >= start + num:
            return 0, 0
        shift = self.prefix_N[row] - start
        return span[0] + shift, span[1] + shift


def _cut(total: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    start = 0
    while True:
        length = min(total - start, room)
        yield start, length
        if start + length == total:
            return
        start += min(length, stride)
