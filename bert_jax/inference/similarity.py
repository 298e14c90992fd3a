"""Scores sentence embeddings on pairs with a similarity, such as STS-B (Cer et al. 2017)."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.inference.bert import Bert
from bert_jax.interop.sentence_transformers import Embedding
from bert_jax.tasks.example_task import as_number
from bert_jax.tasks.scores import regression_scores
from bert_jax.tasks.table import FILE_NAMES
from bert_jax.text.bad_records import BadRecords
from bert_jax.text.tables import read_rows

_COLUMNS = ("sentence1", "sentence2", "score")
# The scores that are reported, and the prefix of those of the baseline.
SCORES = ("spearman", "pearson")
BASELINE_PREFIX = "common_tokens_"
# The number of sentences between two updates of the progress.
_CHUNK = 256


class Pairs(NamedTuple):
    """Sentences whose similarity people have judged.

    Attributes:
      path: The file.
      first, second: The sentences of each pair.
      scores_N: The similarities, float64 [N], in any unit.
    """

    path: epath.Path
    first: list[str]
    second: list[str]
    scores_N: np.ndarray


def read_pairs(source: epath.PathLike) -> Pairs:
    """Reads a TSV, CSV or JSON-lines file with the columns of GLUE's STS-B.

    Args:
      source: The file, or a folder whose validation split it is.
    """
    path = files.checked_path(source, "--sts")
    if path.is_dir():
        names = FILE_NAMES["validation"]
        found = [path / name for name in names if (path / name).exists()]
        if not found:
            raise UserError(f"--sts is {path}, a folder without any of {', '.join(names)}")
        path = found[0]
    first, second, scores = [], [], []
    for row in read_rows(path, _COLUMNS, BadRecords("refuse", "")):
        text, text_b, score = (row.values[name] for name in _COLUMNS)
        number = as_number(score.strip())
        if number is None:
            raise UserError(f"{row.where}: score is {score!r}, not a number")
        first.append(text)
        second.append(text_b)
        scores.append(number)
    return Pairs(path, first, second, np.array(scores))


def score_pairs(
    bert: Bert,
    pairs: Pairs,
    embedding: Embedding,
    advance: Callable[[int], None] = lambda sentences: None,
) -> dict[str, Any]:
    """Correlates the cosine similarity of sentence embeddings with the scores of pairs.

    Args:
      embedding: From `Bert.embedding_with`, with pooling "mean" or "cls".
      advance: Called with the number of sentences just embedded.

    Returns:
      SCORES of the model and, with BASELINE_PREFIX, of the cosine similarity of the two sentences'
      token counts; `num_pairs`, `pooling` and `max_length`. A correlation that is undefined,
      because all values are the same, is 0, as in fine-tuning.
    """
    rows = bert.embedding_rows([*pairs.first, *pairs.second], embedding)
    vectors = []
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        vectors += bert.features(chunk, bert.layers([-1]), embedding)
        advance(len(chunk))
    vectors_2xNxD = np.concatenate(vectors).reshape(2, len(pairs.first), -1)
    special = [bert.tokenizer.cls_id, bert.tokenizer.sep_id]
    counts = [Counter(row.input_ids_L[~np.isin(row.input_ids_L, special)].tolist()) for row in rows]
    counts_of_pairs = zip(counts[: len(pairs.first)], counts[len(pairs.first) :], strict=True)
    baseline_N = np.array([_counts_cosine(*both) for both in counts_of_pairs])
    results = {}
    for prefix, values_N in (
        ("", _SIMILARITIES[embedding.similarity](*vectors_2xNxD)),
        (BASELINE_PREFIX, baseline_N),
    ):
        scores = regression_scores(pairs.scores_N, values_N)
        results |= {f"{prefix}{name}": scores[name] for name in SCORES}
    return {
        **results,
        "num_pairs": len(pairs.first),
        "pooling": embedding.pooling,
        "max_length": embedding.max_length,
    }


def _cosine(first_NxD: np.ndarray, second_NxD: np.ndarray) -> np.ndarray:
    """Computes the cosine similarity of each pair of vectors, float64 [N]."""
    first_NxD, second_NxD = first_NxD.astype(np.float64), second_NxD.astype(np.float64)
    lengths_N = np.linalg.norm(first_NxD, axis=1) * np.linalg.norm(second_NxD, axis=1)
    return (first_NxD * second_NxD).sum(1) / np.maximum(lengths_N, np.finfo(np.float64).tiny)


# Larger values mean more similar texts, as in sentence-transformers.
_SIMILARITIES = {
    "cosine": _cosine,
    "dot": lambda first_NxD, second_NxD: (first_NxD * second_NxD).sum(1),
    "euclidean": lambda first_NxD, second_NxD: -np.linalg.norm(first_NxD - second_NxD, axis=1),
    "manhattan": lambda first_NxD, second_NxD: -np.abs(first_NxD - second_NxD).sum(1),
}


def _counts_cosine(first: Counter[int], second: Counter[int]) -> float:
    """Computes the cosine similarity of token counts; 0 if a sentence has no tokens."""
    dot = sum(count * second[i] for i, count in first.items())
    lengths = math.hypot(*first.values()) * math.hypot(*second.values())
    # Rounding errors must not break the ties that Spearman's ranks have.
    return round(dot / lengths, 12) if lengths else 0.0
