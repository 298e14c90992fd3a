"""The vectors of texts on the host, without padding: a sparse matrix, or a list of matrices."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

import numpy as np

from bert_jax.tokenizers import Tokenizer

if TYPE_CHECKING:
    from scipy import sparse

# A vector of each text: a matrix [N, D], which may be sparse; or several, an array [L, D] of each.
Vectors: TypeAlias = "np.ndarray | sparse.csr_array | Sequence[np.ndarray]"


def compact(outputs: Mapping[str, np.ndarray], kind: str, vocab_size: int) -> Vectors:
    """Returns the vectors of a batch without padding.

    Args:
      outputs: Those of the model; see its class.
      kind: See `Embedding.kind`.
      vocab_size: V, the tokens of the vocabulary; sparse vectors of the model may be longer.

    Returns:
      float32 [N, D]; for sparse vectors in CSR, [N, V]; for several vectors, [L, W] for each text.
    """
    vectors = outputs["embeddings"]
    if kind == "sparse":
        from scipy import sparse  # The import takes a third of a second.

        return sparse.csr_array(vectors[:, :vocab_size])
    if kind == "multi_vector":
        return [x[kept] for x, kept in zip(vectors, outputs["is_vector"], strict=True)]
    return vectors


def joined(parts: Sequence[Vectors]) -> Vectors:
    """Joins the vectors of batches."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    if isinstance(parts[0], list):
        return list(itertools.chain.from_iterable(parts))
    from scipy import sparse  # The import takes a third of a second.

    return sparse.vstack(parts, "csr")


def taken(vectors: Vectors, numbers: Sequence[int]) -> Vectors:
    """Returns the vectors of the texts with these numbers, which may repeat."""
    return [vectors[n] for n in numbers] if isinstance(vectors, list) else vectors[numbers]


def weights_of(vectors: "sparse.csr_array") -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the weights that are not 0 of each vector, and their indices."""
    for start, stop in itertools.pairwise(vectors.indptr.tolist()):
        yield vectors.data[start:stop], vectors.indices[start:stop]


def by_token(
    tokenizer: Tokenizer, weights_A: np.ndarray, ids_A: np.ndarray
) -> list[tuple[str, float]]:
    """Returns the tokens of `weights_of` and their weights, the largest first."""
    order = np.argsort(-weights_A, kind="stable")
    tokens = map(tokenizer.id_to_token, ids_A[order].tolist())
    return list(zip(tokens, weights_A[order].tolist(), strict=True))


def save_npz(stream: BinaryIO, vectors: Vectors) -> None:
    """Writes sparse vectors, or several for each text.

    `scipy.sparse.load_npz` reads sparse ones. Several are in "vectors", [sum of L, W]; those of
    text i are vectors[starts[i] : starts[i + 1]].
    """
    if isinstance(vectors, list):
        starts = np.cumsum([0, *map(len, vectors)], dtype=np.int64)
        np.savez(stream, vectors=np.concatenate(vectors), starts=starts)
        return
    from scipy import sparse  # The import takes a third of a second.

    sparse.save_npz(stream, vectors, compressed=False)


def active_dims(queries: "sparse.csr_array", texts: "sparse.csr_array") -> dict[str, float]:
    """Describes how sparse the vectors of queries and of documents are.

    Returns:
      As sentence-transformers names them: "query_active_dims" and "corpus_active_dims", the mean
      number of values that are not 0; "query_sparsity_ratio" and "corpus_sparsity_ratio", the
      fraction of values that are; and "avg_flops", the mean number of products that are not 0 in a
      comparison of a query with a document.
    """
    found = {}
    for side, vectors in (("query", queries), ("corpus", texts)):
        number, size = vectors.nnz / vectors.shape[0], vectors.shape[1]
        found |= {f"{side}_active_dims": number, f"{side}_sparsity_ratio": 1 - number / size}
    shares = (np.bincount(x.indices, minlength=x.shape[1]) / x.shape[0] for x in (queries, texts))
    return found | {"avg_flops": float(np.dot(*shares))}
