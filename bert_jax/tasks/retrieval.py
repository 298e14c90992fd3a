"""Data that score embeddings: folders of BEIR (Thakur et al. 2021), and pairs with similarities.

The scores of a ranking are those of InformationRetrievalEvaluator in sentence-transformers 6:
relevance is yes or no, and documents with equal similarities are ranked by their ids. BM25 is the
baseline. People have judged the similarities of pairs such as those of STS-B (Cer et al. 2017).
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tasks.table import FILE_NAMES
from bert_jax.text.bad_records import BadRecords, reading_fields
from bert_jax.text.formats import TABLES
from bert_jax.text.tables import read_rows

_PAIR_COLUMNS = ("sentence1", "sentence2", "score")
# The splits of a folder's judgements, in the order of preference.
_SPLITS = ("test", "dev", "validation", "train")
_CUTOFFS = (1, 3, 5, 10)
# Documents of a ranking that are scored.
_DEPTH = 100
# Similarities that are held at once.
_BLOCK = 2**24
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
      relevant: The indices of the relevant documents of each query.
      num_left_out: The number of queries without a relevant document, which are left out.
    """

    documents: Sequence[str]
    queries: Sequence[str]
    relevant: Sequence[np.ndarray]
    num_left_out: int = 0


def make_retrieval(
    documents: dict[str, str], queries: dict[str, str], relevant: dict[str, set[str]]
) -> Retrieval:
    """Numbers the documents in the order of their ids."""
    ids = sorted(documents)
    number = {id: i for i, id in enumerate(ids)}
    asked = [id for id in queries if relevant.get(id)]
    return Retrieval(
        [documents[id] for id in ids],
        [queries[id] for id in asked],
        [np.array(sorted(number[document] for document in relevant[id])) for id in asked],
        len(queries) - len(asked),
    )


def read_retrieval(source: epath.PathLike, key: str) -> Retrieval:
    """Reads corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv of a folder.

    Args:
      source: The folder, whose split is test if there is one; or the file of a split in it.
    """
    path = files.checked_path(source, key)
    folder = path.parent.parent if path.is_file() else path
    judged = [path] if path.is_file() else [folder / "qrels" / f"{s}.tsv" for s in _SPLITS]
    judgements = next((file for file in judged if file.exists()), judged[0])
    documents, queries = (_texts(folder, name) for name in ("corpus", "queries"))
    relevant: dict[str, set[str]] = {}
    columns = ("query-id", "corpus-id", "score")
    for row in read_rows(judgements, columns, BadRecords()):
        query, document, score = (row.values[column].strip() for column in columns)
        for id, known, name in ((query, queries, "queries"), (document, documents, "corpus")):
            if id not in known:
                raise UserError(f"{row.where}: {name} has no {id!r}")
        if float(score) > 0:
            relevant.setdefault(query, set()).add(document)
    return make_retrieval(documents, queries, relevant)


def _texts(folder: epath.Path, name: str) -> dict[str, str]:
    """Reads the texts of a file by id, each after its title, if it has one."""
    found = [folder / f"{name}.{suffix}" for suffix in TABLES]
    path = next((path for path in found if path.exists()), folder / f"{name}.jsonl")
    texts: dict[str, str] = {}
    for row in read_rows(path, ("_id", "text"), BadRecords()):
        id, title = row.values["_id"], row.values.get("title", "")
        texts[id] = f"{title} {row.values['text']}".strip()
    return texts


def retrieval_scores(
    data: Retrieval, similarities: Callable[[slice], np.ndarray]
) -> dict[str, float]:
    """Scores a ranking of the documents for every query.

    Args:
      similarities: Computes the similarities of some queries with all documents, [q, documents].

    Returns:
      The means over all queries of "ndcg@10", "mrr@10", "map@100" and "accuracy@k", "precision@k"
      and "recall@k" for k of 1, 3, 5 and 10. Accuracy is whether a relevant document is among the
      first k.
    """
    size = max(1, _BLOCK // len(data.documents))
    blocks = [slice(start, start + size) for start in range(0, len(data.queries), size)]
    hits_QxR = np.concatenate(
        [_hits(similarities(block), data.relevant[block]) for block in blocks]
    )
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
    for k in _CUTOFFS:
        scores_Q[f"accuracy@{k}"] = hits_QxR[:, :k].any(axis=1)
    for k in _CUTOFFS:
        scores_Q[f"precision@{k}"] = precision_QxR[:, k - 1]
    for k in _CUTOFFS:
        scores_Q[f"recall@{k}"] = precision_QxR[:, k - 1] * k / num_relevant_Q
    return {name: float(np.mean(values_Q)) for name, values_Q in scores_Q.items()}


def _hits(similarity_QxN: np.ndarray, relevant: Sequence[np.ndarray]) -> np.ndarray:
    """Returns whether each of the first documents is relevant, bool [Q, _DEPTH]."""
    num_queries, num_documents = similarity_QxN.shape
    depth = min(_DEPTH, num_documents)
    hits_QxR = np.zeros((num_queries, _DEPTH), bool)
    for hits_R, similarity_N, documents in zip(hits_QxR, similarity_QxN, relevant, strict=True):
        last = np.partition(similarity_N, -depth)[-depth]
        found = np.flatnonzero(similarity_N >= last)
        # A stable sort keeps equal similarities in the order of their ids.
        ranked_R = found[np.argsort(-similarity_N[found], kind="stable")][:depth]
        hits_R[:depth] = np.isin(ranked_R, documents)
    return hits_QxR


def similarities(
    queries_QxD: np.ndarray, documents_NxD: np.ndarray, kind: str
) -> Callable[[slice], np.ndarray]:
    """Returns the similarities of some queries with all documents, larger for more similar ones.

    Args:
      kind: "cosine", "dot", "euclidean" or "manhattan".
    """
    if kind == "cosine":
        queries_QxD, documents_NxD = (
            x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(np.float32).tiny)
            for x in (queries_QxD, documents_NxD)
        )
    if kind in ("cosine", "dot"):
        return lambda block: queries_QxD[block] @ documents_NxD.T
    from scipy.spatial.distance import cdist  # The import takes a third of a second.

    metric = {"euclidean": "euclidean", "manhattan": "cityblock"}[kind]
    return lambda block: -cdist(queries_QxD[block], documents_NxD, metric)


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
        found = [path / name for name in FILE_NAMES["validation"]]
        path = next((file for file in found if file.exists()), path / "dev.tsv")
    first, second, scores = [], [], []
    bad_rows = BadRecords()
    for row in read_rows(path, _PAIR_COLUMNS, bad_rows):
        text, text_b, score = (row.values[name] for name in _PAIR_COLUMNS)
        with bad_rows.catching(row.where), reading_fields():
            scores.append(float(score))
        first.append(text)
        second.append(text_b)
    return first, second, np.array(scores)


def cosine_similarities(first_NxD: np.ndarray, second_NxD: np.ndarray) -> np.ndarray:
    """Computes the cosine similarity of each pair of vectors, float64 [N]."""
    first_NxD, second_NxD = first_NxD.astype(np.float64), second_NxD.astype(np.float64)
    lengths_N = np.linalg.norm(first_NxD, axis=1) * np.linalg.norm(second_NxD, axis=1)
    return (first_NxD * second_NxD).sum(1) / np.maximum(lengths_N, np.finfo(np.float64).tiny)
