"""Exact match and F1 of SQuAD 1.1 and 2.0, by the rules of the official evaluation scripts.

The scripts are evaluate-v1.1.py and evaluate-v2.0.py of rajpurkar.github.io/SQuAD-explorer.
Answers are compared as words: lower-cased, without ASCII punctuation, and then without the
articles a, an and the. The versions treat an answer without words differently. In 1.1,
two such answers match exactly, but their F1 is 0. In 2.0, their F1 is 1, and right answers
without words do not count.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalize(text: str) -> str:
    """Returns the words of an answer that count in comparisons, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """Returns 1.0 if the answers are equal after `normalize`, else 0.0."""
    return float(normalize(prediction) == normalize(answer))


def f1(prediction: str, answer: str, *, empty_agree: bool = False) -> float:
    """Returns the harmonic mean of precision and recall over words.

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
      predictions: The answer to each question.

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
    """Returns the best score in percent, and the least threshold that gives it.

    If it is best to answer nothing, the threshold is 0 as in the official script, whose odds are
    probabilities. If odds are negative, it is 1 less than the lowest of them.
    """
    total = best = sum(not right for right in answers.values())
    least = min(null_odds[question] for question in score)
    threshold = 0.0 if least >= 0 else least - 1
    for question in sorted(score, key=null_odds.__getitem__):
        if answers[question]:
            total += score[question]
        elif predictions[question]:
            total -= 1
        if total > best:
            best, threshold = total, null_odds[question]
    return 100 * best / len(score), threshold
