"""Pairs of sentences whose similarity people have judged, such as STS-B (Cer et al. 2017)."""

import numpy as np
from etils import epath

from bert_jax.base import files
from bert_jax.tasks.table import FILE_NAMES
from bert_jax.text.bad_records import BadRecords, reading_fields
from bert_jax.text.tables import read_rows

_COLUMNS = ("sentence1", "sentence2", "score")


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
    bad_rows = BadRecords("refuse", "")
    for row in read_rows(path, _COLUMNS, bad_rows):
        text, text_b, score = (row.values[name] for name in _COLUMNS)
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
