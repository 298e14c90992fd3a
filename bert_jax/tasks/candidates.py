"""Queries with candidate documents, the rows of rankings, in all forms in which files have them.

A row has positives and negatives in columns of their own, each of a text or a list of texts, or a
list of documents with their labels or scores, or a pair with a label or a score.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from bert_jax.tasks.example_task import as_number
from bert_jax.text.bad_records import BadRecord, BadRecords
from bert_jax.text.tables import MISSING, as_text, listed, read_rows

# The usual names of the columns, in the order in which they are looked for.
QUERIES = ("anchor", "query")
POSITIVES = ("positive", "positives", "pos")
NEGATIVE = re.compile(r"neg|negatives?|negative_\d+")
DOCUMENTS = ("documents", "docs", "document")
_LABELS = ("labels", "label")
_SCORES = ("scores", "score")
_POSITIVE_SCORES = ("positive_scores", "pos_scores")
_NEGATIVE_SCORES = ("negative_scores", "neg_scores")
NUMBERS = (*_LABELS, *_SCORES, *_POSITIVE_SCORES, *_NEGATIVE_SCORES)


class Columns(NamedTuple):
    """The columns of a file. An empty one means those with the usual names."""

    query: str = ""
    positive: str = ""
    negatives: Sequence[str] = ()
    label: str = ""
    score: str = ""


USUAL = Columns()


class Candidates(NamedTuple):
    """A query and its candidate documents, those with higher labels first.

    Attributes:
      labels: The relevance of each document: 1 and 0, or grades.
      scores: A teacher's score of each document, if the row has them.
      places: The place of each document in the ranking that the row gives, from 0; None if its
        positives and negatives are in different columns, which is no ranking.
      is_difference: Whether the row has only the difference of two scores; the second is then 0.
    """

    query: str
    documents: list[str]
    labels: list[float]
    scores: list[float] | None
    places: list[int] | None
    is_difference: bool = False


def read_candidates(
    source: epath.Path, bad_rows: BadRecords, columns: Columns = USUAL
) -> Iterator[Candidates]:
    """Yields the rows of a file; see `candidates_of`."""
    for row in read_rows(source, (), bad_rows):
        with bad_rows.catching(row.where):
            yield candidates_of(row.values, columns)


def candidates_of(
    values: Mapping[str, Any], columns: Columns = USUAL, is_labeled: bool = True
) -> Candidates:
    """Reads a row of a table.

    Positives have the label 1 and negatives 0, unless there are labels. Of documents with scores
    alone, the one with the highest score has the label 1. A single score of a positive and a
    negative is the difference of theirs, as in the MS MARCO files of sentence-transformers.

    Args:
      is_labeled: Whether a list of documents needs labels or scores; otherwise all labels are 0.

    Raises:
      BadRecord: The row is in none of the forms; a text is empty; a number is not finite; or there
        are not as many labels or scores as documents.
    """
    query = values[_first(values, [columns.query] if columns.query else QUERIES)]
    usual = [*POSITIVES, *DOCUMENTS]
    column = _first(values, [columns.positive] if columns.positive else usual)
    found = texts_of(values, [column])
    named = [_first(values, [name]) for name in columns.negatives]
    negatives = named or sorted(filter(NEGATIVE.fullmatch, values))
    # What is missing (null) in one of several columns is no text.
    others = texts_of(values, [name for name in negatives if values.get(name, "") != ""])
    documents = [*found, *others]
    if not isinstance(query, str) or not all(text.strip() for text in (query, *documents)):
        raise BadRecord("empty text", "a text is empty, or the query is a list")
    labels = _numbers(values, [columns.label] if columns.label else _LABELS, len(documents))
    margin = as_number(str(values.get(columns.score or "score")))
    is_difference = (len(found), len(others)) == (1, 1) and margin is not None
    named = [columns.score] if columns.score else _SCORES
    scores = [margin, 0.0] if is_difference else _scores(values, named, len(found), len(others))
    is_ranking = labels is not None or column in DOCUMENTS
    if labels is None and is_ranking and not is_labeled:
        labels = [0.0] * len(documents)
    if labels is None and is_ranking:
        if not scores:
            raise BadRecord(MISSING, f"the texts of {column} have neither labels nor scores")
        best = scores.index(max(scores))
        labels = [float(place == best) for place in range(len(scores))]
    if labels is None:
        labels = [1.0] * len(found) + [0.0] * len(others)
    places = sorted(range(len(documents)), key=lambda place: -labels[place])
    return Candidates(
        query,
        [documents[place] for place in places],
        [labels[place] for place in places],
        None if scores is None else [scores[place] for place in places],
        places if is_ranking else None,
        is_difference,
    )


def texts_of(values: Mapping[str, Any], columns: Iterable[str]) -> list[str]:
    """Returns the texts of some columns, each with a text or a list of texts."""
    found: list[str] = []
    for column in columns:
        value = values.get(column, [])
        # CSV has lists as texts.
        texts = value if isinstance(value, list) else isinstance(value, str) and listed(value)
        is_list = isinstance(value, list) or texts and all(isinstance(text, str) for text in texts)
        found += map(as_text, texts if is_list else [value])
    if not all(isinstance(text, str) for text in found):
        raise BadRecord("not a text", f"{' or '.join(columns)} has something else than texts")
    return found


def _first(values: Mapping[str, Any], columns: Sequence[str]) -> str:
    for column in columns:
        if column in values:
            return column
    known = ", ".join(values) or "none"
    raise BadRecord(MISSING, f"it has no field {' or '.join(columns)}; its fields: {known}")


def _scores(
    values: Mapping[str, Any], columns: Sequence[str], num_first: int, num_others: int
) -> list[float] | None:
    """Returns the scores of the documents, which may be apart for positives and negatives."""
    scores = _numbers(values, columns, num_first + num_others)
    if scores is not None:
        return scores
    parts = [_numbers(values, _POSITIVE_SCORES, num_first)]
    if num_others:
        parts.append(_numbers(values, _NEGATIVE_SCORES, num_others))
    return None if None in parts else list(itertools.chain.from_iterable(parts))


def _numbers(values: Mapping[str, Any], columns: Sequence[str], count: int) -> list[float] | None:
    """Returns the numbers of the first of some columns that exists; None if none does."""
    column = next((name for name in columns if values.get(name, "") != ""), None)
    if column is None:
        return None
    value = values[column]
    if isinstance(value, str):
        # CSV has lists as texts.
        value = listed(value) or [value]
    if not isinstance(value, list) or len(value) != count:
        numbers = len(value) if isinstance(value, list) else "no"
        raise BadRecord("number of values", f"{column} has {numbers} values for {count} documents")
    numbers = [as_number(str(as_text(x))) for x in value]
    if None in numbers:
        text = str(values[column])
        raise BadRecord("not a number", f"{column} has something else than numbers: {text:.60}")
    return numbers
