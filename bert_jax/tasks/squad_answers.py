"""Finds the best answers: the n best spans over the windows of each question.

This is the method of google-research/bert's run_squad.py with two differences. Only tokens of the
context compete for the n best starts and ends, so padding and the question cannot displace them.
An answer is the slice of the context that its tokens cover; the original aligns two spellings
instead.
"""

import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from bert_jax.tasks.squad_data import Question, Windows


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


class Ranking(NamedTuple):
    """The answers to one question.

    Attributes:
      answers: The answers, best first, each text once. "" (no answer) is included only if
        allowed.
      null_odds: The score of no answer minus the score of the best span, if both exist.
    """

    question: str
    answers: list[Answer]
    null_odds: float | None = None

    @property
    def best_span(self) -> Answer | None:
        """The best answer that is not empty; None for a context without tokens."""
        return next((answer for answer in self.answers if answer.text), None)

    def prediction(self, null_threshold: float) -> str:
        """Returns the best answer, which is empty if `null_odds` are above the threshold."""
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
      start_logits, end_logits: Floats [L] for each row, or [N, L]. L is at least the row's length.
      n_best: The number of starts and ends per window that are combined, and of answers that
        are kept.
      max_answer_length: The largest number of tokens in an answer.
      with_no_answer: Whether "no answer" is a candidate, as in SQuAD 2.0. It gets the logits of
        [CLS] from the window where their sum is lowest.
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
        yield _rank(question, spans, null, n_best)


def _spans(
    windows: Windows,
    row: int,
    start_logits_L: np.ndarray,
    end_logits_L: np.ndarray,
    n_best: int | None,
    max_answer_length: int,
) -> Iterator[Answer]:
    """Yields the combinations of the best starts and ends of a window that are valid answers."""
    context = windows.questions[windows.question_N[row]].context
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
        first, last = first_S[s], last_E[e]
        start, end = windows.characters(row, first, last)
        text = context.text[start:end]
        yield Answer(text, start, end, float(start_T[first]), float(end_T[last]))


def _rank(question: Question, spans: list[Answer], null: Answer | None, n_best: int) -> Ranking:
    # The sort is stable: equal scores keep this order, and "no answer" comes last.
    candidates = [*spans, null] if null else spans
    answers: dict[str, Answer] = {}
    for answer in sorted(candidates, key=lambda answer: answer.score, reverse=True):
        # One span is always kept, because `null_odds` is relative to the best span.
        if len(answers) >= n_best and answers.keys() != {""}:
            break
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


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalize(text: str) -> str:
    """Reduces an answer to the words that count in comparisons, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    return float(normalize(prediction) == normalize(answer))


def f1(prediction: str, answer: str, *, empty_agree: bool = False) -> float:
    """Computes the harmonic mean of precision and recall over words.

    Args:
      empty_agree: Whether two texts without words score 1.0, as in SQuAD 2.0, or 0.0.
    """
    predicted, right = normalize(prediction).split(), normalize(answer).split()
    if empty_agree and not (predicted and right):
        return float(predicted == right)
    shared = sum((Counter(predicted) & Counter(right)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(right)
    return 2 * precision * recall / (precision + recall)


def score_1(
    answers: Mapping[str, Sequence[str]], predictions: Mapping[str, str]
) -> dict[str, float]:
    """Scores SQuAD 1.1 in percent: the best score over the right answers, averaged.

    Args:
      answers: The right answers to each question, at least one.

    Returns:
      "exact_match" and "f1".
    """
    exact = sum(max(exact_match(predictions[q], a) for a in answers[q]) for q in answers)
    shared = sum(max(f1(predictions[q], a) for a in answers[q]) for q in answers)
    return {"exact_match": 100 * exact / len(answers), "f1": 100 * shared / len(answers)}


def score_2(
    answers: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float],
    null_threshold: float,
) -> dict[str, float]:
    """Scores SQuAD 2.0 in percent, with the given threshold and with the best thresholds.

    Args:
      answers: The right answers to each question; none if there is no answer.
      predictions: The answer to each question if it has one; may be empty.
      null_odds: The odds or probability that each question has no answer.
      null_threshold: A question with higher odds counts as not answered.

    Returns:
      "exact", "f1" and "total" over all questions; the same over those with an answer
      ("HasAns_exact", ...) and over those without ("NoAns_exact", ...), if there are any; and
      "best_exact", "best_exact_thresh", "best_f1" and "best_f1_thresh".
    """
    scores: dict[str, dict[str, float]] = {"exact": {}, "f1": {}}
    for question, right in answers.items():
        right = [answer for answer in right if normalize(answer)] or [""]
        predicted = predictions[question]
        scores["exact"][question] = max(exact_match(predicted, a) for a in right)
        scores["f1"][question] = max(f1(predicted, a, empty_agree=True) for a in right)
    groups = {
        "": list(answers),
        "HasAns_": [question for question in answers if answers[question]],
        "NoAns_": [question for question in answers if not answers[question]],
    }
    result: dict[str, float] = {}
    for prefix, group in groups.items():
        if not group:
            continue
        for name, score in scores.items():
            # A question that is not answered is right if it has no answer.
            total = sum(
                score[question]
                if null_odds[question] <= null_threshold
                else float(not answers[question])
                for question in group
            )
            result[f"{prefix}{name}"] = 100 * total / len(group)
        result[f"{prefix}total"] = float(len(group))
    for name, score in scores.items():
        best, threshold = _best_threshold(score, answers, predictions, null_odds)
        result |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return result


def _best_threshold(
    score: Mapping[str, float],
    answers: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float],
) -> tuple[float, float]:
    """Finds the best score in percent, and the lowest threshold that gives it.

    If it is best to answer nothing, the threshold is 0 as in the official script, whose odds are
    probabilities; if there are negative odds, it is 1 less than the lowest.
    """
    total = best = sum(not right for right in answers.values())
    lowest = min(null_odds[question] for question in score)
    threshold = 0.0 if lowest >= 0 else lowest - 1
    for question in sorted(score, key=null_odds.__getitem__):
        if answers[question]:
            total += score[question]
        elif predictions[question]:
            total -= 1
        if total > best:
            best, threshold = total, null_odds[question]
    return 100 * best / len(score), threshold
