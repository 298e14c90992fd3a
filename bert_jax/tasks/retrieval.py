"""Scores of embeddings on retrieval and on pairs with similarities.

The scores of a ranking are those of InformationRetrievalEvaluator in sentence-transformers 6:
relevance is yes or no, and documents with equal similarities are ranked by their ids. BM25 is the
baseline. People have judged the similarities of pairs such as those of STS-B (Cer et al. 2017).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tasks.example_task import as_number
from bert_jax.tasks.table import FILE_NAMES
from bert_jax.tasks.task import places
from bert_jax.tasks.vectors import Vectors
from bert_jax.text.bad_records import BadRecords
from bert_jax.text.tables import read_rows

_PAIR_COLUMNS = ("sentence1", "sentence2", "score")
_CUTOFFS = (1, 3, 5, 10)
# Documents of a ranking that are scored.
_DEPTH = 100
# Similarities that are in memory at once.
_BLOCK = 2**24
# With several vectors for each text: how many of queries are compared with as many of documents.
_TOKENS = 2**12
# The similarity of a document without a vector, as in sentence-transformers.
_NO_VECTOR = -1e9
# Words of letters and digits. Chinese and Japanese have no spaces: each character is a word.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
# The prefix of the scores of BM25.
BASELINE_PREFIX = "bm25_"
# Robertson and Zaragoza 2009, with the values that Lucene has.
_K1, _B = 1.2, 0.75


class Retrieval(NamedTuple):
    """Queries, and the documents that are relevant to them.

    Attributes:
      documents: The texts of the documents, in the order of their ids.
      queries: The texts of the queries, each with a relevant document.
      relevant: The numbers of the relevant documents of each query, and how relevant they are,
        above 0. A number from `len(documents)` on is that of a document that the corpus lacks.
      own: The number of the document that is left out of the ranking of each query; -1 for none.
      num_left_out: The number of queries without a relevant document, which are left out.
      ranked: The numbers of the documents that BM25 found for each query, the best first, if the
        data have them: int [R].
    """

    documents: Sequence[str]
    queries: Sequence[str]
    relevant: Sequence[Mapping[int, float]]
    own: Sequence[int]
    num_left_out: int = 0
    ranked: Sequence[np.ndarray] = ()

    def distinct(self) -> tuple[list[str], np.ndarray]:
        """Returns the different texts of documents, and the number of each document's, int [N]."""
        numbers: dict[str, int] = {}
        number_N = [numbers.setdefault(text, len(numbers)) for text in self.documents]
        return list(numbers), np.array(number_N)


def make_retrieval(
    documents: Mapping[str, str],
    queries: Mapping[str, str],
    judged: Mapping[str, Mapping[str, float]],
    skip_own: bool = False,
    ranked: Mapping[str, Sequence[str]] | None = None,
) -> Retrieval:
    """Numbers the documents in the order of their ids.

    Args:
      judged: For each query, how relevant the judged documents are; above 0 if they are at all.
      skip_own: Whether a document with the id of a query is left out of its ranking.
      ranked: For each query, the documents that BM25 found. Unknown ones are left out.
    """
    ids = sorted(documents)
    number = {id: i for i, id in enumerate(ids)}
    relevant: dict[str, dict[int, float]] = {}
    for query in queries:
        positive = {id: grade for id, grade in judged.get(query, {}).items() if grade > 0}
        if positive:
            relevant[query] = {
                number.setdefault(id, len(number)): positive[id] for id in sorted(positive)
            }
    own = [number.get(id, -1) if skip_own else -1 for id in relevant]
    found = []
    for query, left_out in zip(relevant, own, strict=True) if ranked else ():
        numbers = [number[id] for id in ranked.get(query, ()) if id in documents]
        found.append(np.array([n for n in numbers if n != left_out], int))
    return Retrieval(
        [documents[id] for id in ids],
        [queries[id] for id in relevant],
        list(relevant.values()),
        own,
        len(queries) - len(relevant),
        found,
    )


def retrieval_scores(
    data: Retrieval, similarities: Callable[[slice], np.ndarray]
) -> dict[str, float]:
    """Scores a ranking of the documents for every query.

    Args:
      similarities: Computes the similarities of some queries with all documents, [q, documents].

    Returns:
      The means over all queries of "ndcg@10", "mrr@10", "map@100" and "accuracy@k", "precision@k"
      and "recall@k" for k of 1, 3, 5 and 10. Accuracy is whether a relevant document is among the
      first k. If documents are relevant to different degrees, "graded_ndcg@10" has these as gains,
      as trec_eval's ndcg_cut_10.
    """
    rankings = zip(data.relevant, nearest(data, similarities, _DEPTH), strict=True)
    grades_QxR = np.zeros((len(data.queries), _DEPTH))
    for grades_R, (relevant, ranked) in zip(grades_QxR, rankings, strict=True):
        grades_R[: len(ranked)] = [relevant.get(document, 0) for document in ranked.tolist()]
    hits_QxR = grades_QxR > 0
    num_relevant_Q = np.array([len(documents) for documents in data.relevant])
    rank_R = np.arange(1, _DEPTH + 1)
    gain_R = 1 / np.log2(rank_R + 1)
    best_Q = np.cumsum(gain_R)[np.minimum(num_relevant_Q, 10) - 1]
    precision_QxR = np.cumsum(hits_QxR, axis=1) / rank_R
    scores_Q = {
        "ndcg@10": (hits_QxR[:, :10] @ gain_R[:10]) / best_Q,
        "mrr@10": (hits_QxR[:, :10] / rank_R[:10]).max(axis=1),
        "map@100": (hits_QxR * precision_QxR).sum(axis=1) / np.minimum(num_relevant_Q, _DEPTH),
    }
    if any(grade != 1 for grades in data.relevant for grade in grades.values()):
        best_Qx10 = [sorted(grades.values(), reverse=True)[:10] for grades in data.relevant]
        best_Q = np.array([grades @ gain_R[: len(grades)] for grades in map(np.array, best_Qx10)])
        scores_Q["graded_ndcg@10"] = (grades_QxR[:, :10] @ gain_R[:10]) / best_Q
    for k in _CUTOFFS:
        scores_Q[f"accuracy@{k}"] = hits_QxR[:, :k].any(axis=1)
    for k in _CUTOFFS:
        scores_Q[f"precision@{k}"] = precision_QxR[:, k - 1]
    for k in _CUTOFFS:
        scores_Q[f"recall@{k}"] = precision_QxR[:, k - 1] * k / num_relevant_Q
    return {name: float(np.mean(values_Q)) for name, values_Q in scores_Q.items()}


def mean_scores(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Computes the means of the scores that all data sets have."""
    first, *others = found.values()
    names = [name for name, x in first.items() if isinstance(x, float)]
    return {
        name: float(np.mean([scores[name] for scores in found.values()]))
        for name in names
        if all(name in scores for scores in others)
    }


def nearest(
    data: Retrieval, similarities: Callable[[slice], np.ndarray], depth: int
) -> Iterator[np.ndarray]:
    """Yields the numbers of the first documents for each query, at most `depth`: int [R].

    Args:
      similarities: See `retrieval_scores`.
    """
    size = max(1, _BLOCK // len(data.documents))
    # One more, because one may be left out.
    size_of_found = min(depth + 1, len(data.documents))
    for start in range(0, len(data.queries), size):
        block = slice(start, start + size)
        for similarity_N, own in zip(similarities(block), data.own[block], strict=True):
            last = np.partition(similarity_N, -size_of_found)[-size_of_found]
            found = np.flatnonzero(similarity_N >= last)
            found = found[found != own]
            # A stable sort keeps equal similarities in the order of their ids.
            yield found[np.argsort(-similarity_N[found], kind="stable")][:depth]


def similarities(
    queries: Vectors, texts: Vectors, number_N: np.ndarray, kind: str
) -> Callable[[slice], np.ndarray]:
    """Returns the similarities of some queries with all documents, larger for more similar ones.

    Args:
      queries, texts, number_N: The vectors of queries, those of the different texts, and which of
        these each document has; see `Retrieval.distinct`. In a product of matrices, equal vectors
        may differ in a last bit.
      kind: "cosine", "dot" (also of sparse vectors), "euclidean" or "manhattan"; for several
        vectors each, "maxsim" or "mean_maxsim".
    """
    if kind in ("maxsim", "mean_maxsim"):
        is_mean = kind == "mean_maxsim"
        return lambda block: _maxsim(queries[block], texts, is_mean)[:, number_N]
    if kind == "dot" and not isinstance(texts, np.ndarray):
        # Each product would transpose the other layout again.
        texts_VxT = texts.T.tocsr()
        return lambda block: (queries[block] @ texts_VxT).toarray()[:, number_N]
    if kind == "cosine":
        queries, texts = (
            x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(np.float32).tiny)
            for x in (queries, texts)
        )
    if kind in ("cosine", "dot"):
        return lambda block: (queries[block] @ texts.T)[:, number_N]
    from scipy.spatial.distance import cdist  # The import takes a third of a second.

    metric = {"euclidean": "euclidean", "manhattan": "cityblock"}[kind]
    return lambda block: -cdist(queries[block], texts, metric)[:, number_N]


def _maxsim(
    queries: Sequence[np.ndarray], texts: Sequence[np.ndarray], is_mean: bool
) -> np.ndarray:
    """Sums, over the vectors of a query, the largest product with a vector of a text: [q, T].

    The mean divides by the number of these vectors. A text without a vector has _NO_VECTOR.
    """
    length_q, length_T = (np.array([len(x) for x in side], np.int32) for side in (queries, texts))
    scores_qxT = np.tile(np.where(length_T, 0, np.float32(_NO_VECTOR)), (len(queries), 1))
    for numbers in _parts(length_T):
        of_texts, starts = np.concatenate([texts[n] for n in numbers]), _starts(length_T[numbers])
        for asked in _parts(length_q):
            products = np.concatenate([queries[n] for n in asked]) @ of_texts.T
            largest = np.maximum.reduceat(products, starts, axis=1)
            sums = np.add.reduceat(largest, _starts(length_q[asked]), axis=0)
            scores_qxT[np.ix_(asked, numbers)] = sums
    if is_mean:
        scores_qxT /= np.maximum(length_q, 1)[:, None]
    return scores_qxT


def _parts(lengths: np.ndarray) -> list[np.ndarray]:
    """Divides the indices of the lengths above 0 into parts whose sums are about _TOKENS."""
    indices = np.flatnonzero(lengths)
    ends = np.flatnonzero(np.diff(_starts(lengths[indices]) // _TOKENS)) + 1
    return np.split(indices, ends) if indices.size else []


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.cumsum(lengths) - lengths


def bm25_similarities(data: Retrieval) -> Callable[[slice], np.ndarray]:
    """Returns the similarities of BM25 on lower-cased words; see `retrieval_scores`."""
    from scipy import sparse  # The import takes a third of a second.

    numbers: dict[str, int] = {}

    def counted(texts: Sequence[str]) -> sparse.csr_array:
        rows, columns, counts = [], [], []
        for row, text in enumerate(texts):
            for word, count in Counter(_WORD.findall(text.lower())).items():
                rows.append(row)
                columns.append(numbers.setdefault(word, len(numbers)))
                counts.append(count)
        shape = len(texts), len(numbers)
        return sparse.csr_array((np.array(counts, float), (rows, columns)), shape=shape)

    counts_NxV = counted(data.documents)
    num_words = len(numbers)
    # Words of no document are similar to none.
    queries_QxV = counted(data.queries)[:, :num_words]
    length_N = counts_NxV.sum(axis=1)
    frequency_V = np.bincount(counts_NxV.indices, minlength=num_words)
    rarity_V = np.log1p((len(data.documents) - frequency_V + 0.5) / (frequency_V + 0.5))
    row_E = np.repeat(np.arange(len(data.documents)), np.diff(counts_NxV.indptr))
    norm_E = _K1 * (1 - _B + _B * length_N[row_E] / max(np.mean(length_N), 1))
    weight_E = counts_NxV.data * rarity_V[counts_NxV.indices] / (counts_NxV.data + norm_E)
    weights_NxV = sparse.csr_array(
        (weight_E, counts_NxV.indices, counts_NxV.indptr), shape=counts_NxV.shape
    )
    return lambda block: (queries_QxV[block] @ weights_NxV.T).toarray()


def read_pairs(source: epath.PathLike, key: str) -> tuple[list[str], list[str], np.ndarray]:
    """Reads a TSV, CSV or JSON-lines file with the columns of GLUE's STS-B.

    Args:
      source: The file, or a folder whose validation split it is.

    Returns:
      The first and the second sentence of each pair, and the similarities, float64 [N].
    """
    path = files.checked_path(source, key)
    if path.is_dir():
        found = (file for name in FILE_NAMES["validation"] for file in places(path, name))
        path = next(found, path / "dev.tsv")
    first, second, scores = [], [], []
    for row in read_rows(path, _PAIR_COLUMNS, BadRecords()):
        text, text_b, score = (row.values[name] for name in _PAIR_COLUMNS)
        if (number := as_number(score)) is None:
            raise UserError(f"{row.where}: score is {score!r}, not a number")
        scores.append(number)
        first.append(text)
        second.append(text_b)
    if not scores:
        raise UserError(f"{path} has no rows")
    return first, second, np.array(scores)


def cosine_similarities(first_NxD: np.ndarray, second_NxD: np.ndarray) -> np.ndarray:
    """Computes the cosine similarity of each pair of vectors, float64 [N]."""
    first_NxD, second_NxD = first_NxD.astype(np.float64), second_NxD.astype(np.float64)
    lengths_N = np.linalg.norm(first_NxD, axis=1) * np.linalg.norm(second_NxD, axis=1)
    return (first_NxD * second_NxD).sum(1) / np.maximum(lengths_N, np.finfo(np.float64).tiny)
