"""Logits to answers: the n best spans of the windows of each question.

As google-research/bert's run_squad.py finds them, with two differences: only tokens of the
context compete for the n best starts and ends, so that padding and the question cannot push
them out and an answer does not depend on how its row is padded; and the answer is the slice
of the context that its tokens are, where the original aligns two spellings.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_jax.tasks.squad_windows import Windows


class Answer(NamedTuple):
    """A candidate.

    Attributes:
      text: context[start:end]; empty: no answer.
      start, end: Characters of the context.
      probability: Among the n best of the question.
    """

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float
    probability: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


class Ranking(NamedTuple):
    """The answers to one question.

    Attributes:
      question: Its id.
      answers: The best first, no text twice; "" (no answer) among them in SQuAD 2.0 only.
      null_odds: SQuAD 2.0: how much the score of no answer is above that of the best span.
    """

    question: str
    answers: list[Answer]
    null_odds: float | None

    @property
    def best_span(self) -> Answer | None:
        """The best answer that is one; None of a context without tokens."""
        return next((answer for answer in self.answers if answer.text), None)

    def prediction(self, null_threshold: float) -> str:
        """The text: empty if `null_odds` is above the threshold."""
        span = self.best_span
        answerless = self.null_odds is not None and self.null_odds > null_threshold
        return "" if span is None or answerless else span.text


class _Span(NamedTuple):
    row: int
    first: int
    last: int
    start_logit: float
    end_logit: float


def rank_answers(
    windows: Windows,
    start_logits_NxL: np.ndarray,
    end_logits_NxL: np.ndarray,
    *,
    n_best: int = 20,
    max_answer_length: int = 30,
) -> Iterator[Ranking]:
    """The answers to every question, in their order.

    Args:
      windows: The rows, N.
      start_logits_NxL, end_logits_NxL: Floats; L at least as long as any row is unpadded.
      n_best: Starts and ends of a window that are combined, and answers that are kept.
      max_answer_length: Tokens of an answer.
    """
    for index in range(len(windows.questions.questions)):
        rows = range(windows.row_starts[index], windows.row_starts[index + 1])
        spans = [
            span
            for row in rows
            for span in _spans(
                windows, row, start_logits_NxL[row], end_logits_NxL[row], n_best, max_answer_length
            )
        ]
        if not spans:
            # Whatever the logits are, a token by itself is an answer.
            spans = [
                span
                for row in rows
                for span in _single_tokens(windows, row, start_logits_NxL[row], end_logits_NxL[row])
            ]
        null = None
        if windows.questions.with_no_answer:
            nulls = [(float(start_logits_NxL[r, 0]), float(end_logits_NxL[r, 0])) for r in rows]
            null = min(nulls, key=sum)
        yield _rank(windows, index, spans, null, n_best)


def _spans(
    windows: Windows,
    row: int,
    start_logits_L: np.ndarray,
    end_logits_L: np.ndarray,
    n_best: int,
    max_answer_length: int,
) -> list[_Span]:
    """Those of the n best starts with the n best ends that can be answers."""
    prefix, num = windows.prefix_N[row], windows.num_tokens_N[row]
    start_T = start_logits_L[prefix : prefix + num]
    end_T = end_logits_L[prefix : prefix + num]
    first_S, last_E = _largest(start_T, n_best), _largest(end_T, n_best)
    length_SxE = last_E - first_S[:, None] + 1
    valid_SxE = (length_SxE >= 1) & (length_SxE <= max_answer_length)
    valid_SxE &= windows.is_max_context(row)[first_S][:, None]
    pairs = ((first_S[s], last_E[e]) for s, e in np.argwhere(valid_SxE))
    return [
        _Span(row, int(first), int(last), float(start_T[first]), float(end_T[last]))
        for first, last in pairs
    ]


def _single_tokens(
    windows: Windows, row: int, start_logits_L: np.ndarray, end_logits_L: np.ndarray
) -> list[_Span]:
    prefix = windows.prefix_N[row]
    return [
        _Span(row, t, t, float(start_logits_L[prefix + t]), float(end_logits_L[prefix + t]))
        for t in np.flatnonzero(windows.is_max_context(row)).tolist()
    ]


def _largest(values_T: np.ndarray, number: int) -> np.ndarray:
    """Indices of the largest, the largest first, of equal ones the first."""
    return np.argsort(-values_T, kind="stable")[:number]


def _rank(
    windows: Windows,
    index: int,
    spans: list[_Span],
    null: tuple[float, float] | None,
    n_best: int,
) -> Ranking:
    question = windows.questions.questions[index]
    context = windows.questions.contexts[question.context]
    # Of equal ones the first stays first, and no answer comes last.
    candidates = [_Span(-1, 0, 0, *null)] if null else []
    candidates = sorted(
        [*spans, *candidates], key=lambda span: span.start_logit + span.end_logit, reverse=True
    )
    answers: dict[str, Answer] = {}
    for span in candidates:
        # An answer that is one is among them: null_odds is measured from the best.
        if len(answers) >= n_best and answers.keys() != {""}:
            break
        start, end = (0, 0) if span.row < 0 else windows.text(span.row, span.first, span.last)
        text = context[start:end]
        answers.setdefault(text, Answer(text, start, end, span.start_logit, span.end_logit, 0.0))
    if null and "" not in answers:
        answers[""] = Answer("", 0, 0, *null, 0.0)
    ranked = list(answers.values())
    score_A = np.array([answer.score for answer in ranked])
    weight_A = np.exp(score_A - score_A.max()) if ranked else score_A
    probability_A = weight_A / weight_A.sum()
    ranked = [a._replace(probability=float(p)) for a, p in zip(ranked, probability_A, strict=True)]
    ranking = Ranking(question.id, ranked, None)
    if null and ranking.best_span:
        return ranking._replace(null_odds=sum(null) - ranking.best_span.score)
    return ranking
