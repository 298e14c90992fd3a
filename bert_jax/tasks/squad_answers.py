"""Finds the best answers: the n best spans over the windows of each question.

This is the method of google-research/bert's run_squad.py with two differences. Only tokens of the
context compete for the n best starts and ends, so padding and the question cannot displace them.
An answer is the slice of the context that its tokens cover; the original aligns two spellings
instead.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from bert_jax.tasks.squad_data import Question
from bert_jax.tasks.squad_windows import Windows


class Answer(NamedTuple):
    """A candidate answer.

    Attributes:
      text: context[start:end]; empty for no answer.
      start, end: Characters of the context.
      probability: The probability among the question's n best answers.
    """

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float
    probability: float = 0.0

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


class _Span(NamedTuple):
    """Tokens of a window."""

    row: int
    first: int
    last: int
    start_logit: float
    end_logit: float


class Ranking(NamedTuple):
    """The answers to one question.

    Attributes:
      question: Its id.
      answers: The answers, best first, each text once. "" (no answer) is included only if
        allowed.
      null_odds: The score of no answer minus that of the best span, if both exist.
    """

    question: str
    answers: list[Answer]
    null_odds: float | None = None

    @property
    def best_span(self) -> Answer | None:
        """The best answer that is not empty; None for a context without tokens."""
        return next((answer for answer in self.answers if answer.text), None)

    def prediction(self, null_threshold: float) -> str:
        """Returns the best answer, which is empty if `null_odds` is above the threshold."""
        span = self.best_span
        is_null = self.null_odds is not None and self.null_odds > null_threshold
        return "" if span is None or is_null else span.text


def rank_answers(
    windows: Windows,
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    *,
    n_best: int,
    max_answer_length: int,
    with_no_answer: bool = False,
) -> Iterator[Ranking]:
    """Yields the answers to every question in order.

    Args:
      windows: N rows.
      start_logits, end_logits: Floats [L] for each row, or [N, L]. L is at least the row's length.
      n_best: The number of starts and ends per window that are combined, and of answers that
        are kept.
      max_answer_length: The most tokens that an answer may have.
      with_no_answer: Whether "no answer" is a candidate, as in SQuAD 2.0. Its logits are those
        of [CLS] in the window where they are lowest.
    """
    for index, question in enumerate(windows.questions):
        rows = windows.rows_of(index)
        logits = [(row, start_logits[row], end_logits[row]) for row in rows]
        spans = [s for row in logits for s in _spans(windows, *row, n_best, max_answer_length)]
        if not spans:
            # If no combination is valid, any single token is a candidate.
            spans = [s for row in logits for s in _spans(windows, *row, None, 1)]
        null = None
        if with_no_answer:
            nulls = [(float(start_L[0]), float(end_L[0])) for _, start_L, end_L in logits]
            null = Answer("", 0, 0, *min(nulls, key=sum))
        yield _rank(windows, question, spans, null, n_best)


def _spans(
    windows: Windows,
    row: int,
    start_logits_L: np.ndarray,
    end_logits_L: np.ndarray,
    n_best: int | None,
    max_answer_length: int,
) -> Iterator[_Span]:
    """Yields the combinations of the best starts and ends of a window that are valid answers."""
    prefix, num = windows.prefix_N[row], windows.num_tokens_N[row]
    start_T = start_logits_L[prefix : prefix + num]
    end_T = end_logits_L[prefix : prefix + num]
    # Equal logits keep the order of the text.
    first_S = np.argsort(-start_T, kind="stable")[:n_best]
    last_E = np.argsort(-end_T, kind="stable")[:n_best]
    length_SxE = last_E - first_S[:, None] + 1
    valid_SxE = (length_SxE >= 1) & (length_SxE <= max_answer_length)
    valid_SxE &= windows.is_max_context(row)[first_S][:, None]
    for s, e in np.argwhere(valid_SxE):
        first, last = int(first_S[s]), int(last_E[e])
        yield _Span(row, first, last, float(start_T[first]), float(end_T[last]))


def _rank(
    windows: Windows, question: Question, spans: list[_Span], null: Answer | None, n_best: int
) -> Ranking:
    # The sort is stable: equal scores keep this order, and "no answer" comes last.
    candidates = [*spans, null] if null else spans
    answers: dict[str, Answer] = {}
    for answer in sorted(candidates, key=lambda c: c.start_logit + c.end_logit, reverse=True):
        # One span is always kept, because `null_odds` is relative to the best span.
        if len(answers) >= n_best and answers.keys() != {""}:
            break
        if isinstance(answer, _Span):
            start, end = windows.place(answer.row, answer.first, answer.last)
            text = question.context.text[start:end]
            answer = Answer(text, start, end, answer.start_logit, answer.end_logit)
        answers.setdefault(answer.text, answer)
    if null:
        answers.setdefault("", null)
    ranked = list(answers.values())
    probabilities = softmax([answer.score for answer in ranked]) if ranked else []
    ranked = [a._replace(probability=float(p)) for a, p in zip(ranked, probabilities, strict=True)]
    ranking = Ranking(question.id, ranked)
    if null and ranking.best_span:
        return ranking._replace(null_odds=null.score - ranking.best_span.score)
    return ranking
