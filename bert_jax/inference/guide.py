"""The vectors of a guide, a model that finds false negatives (GISTEmbed, Solatorio 2024)."""

import functools
import itertools
import tempfile
from collections.abc import Iterable

import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.inference.bert import Bert
from bert_jax.inference.embeddings import embed
from bert_jax.interop.embedding import Embedding
from bert_jax.tasks.embedding_rows import TupleRows

# The number of texts that are tokenized together.
_CHUNK = 2048


class GuidedRows:
    """Training rows of embeddings whose batches also have the vectors of a guide.

    Each distinct text gets its vector before the first batch, and all are in a memory-mapped file
    without a name, in the system's temporary folder. In the step, they would be computed again in
    each epoch, from tokens of the guide's own vocabulary.
    """

    def __init__(self, rows: TupleRows, guide: Bert):
        guide.require_dense("config.embedding.guide")
        if guide.embedding.pooling is None:
            raise UserError(
                f"config.embedding.guide is {guide.source}, which does not say how it pools; copy "
                "its folder 1_Pooling too, or take another model"
            )
        self.PER_TOKEN, self._rows, self._guide = rows.PER_TOKEN, rows, guide

    def __len__(self) -> int:
        return len(self._rows)

    def draw(self, indices: np.ndarray, seed: int, step: int) -> dict[str, np.ndarray]:
        """Adds "guide_queries", float32 [n, G], and "guide_documents", [n, C, G], of length 1."""
        rows, (queries_QxG, documents_DxG) = self._rows, self._vectors
        place_nxC, _ = rows.places(indices)
        return rows.draw(indices, seed, step) | {
            "guide_queries": queries_QxG[rows.queries_N[indices]],
            "guide_documents": documents_DxG[rows.documents_M[place_nxC]],
        }

    @functools.cached_property
    def _vectors(self) -> tuple[np.ndarray, np.ndarray]:
        say(f"computing the vectors of {self._guide.source}, the guide, for all training texts")
        embedding = self._guide.embedding_with(None, True, None)
        queries, documents = self._rows.sides
        return (
            _vectors_of(queries, self._guide, embedding.for_queries()),
            _vectors_of(documents, self._guide, embedding.for_documents()),
        )


def _vectors_of(texts: Iterable[str], guide: Bert, embedding: Embedding) -> np.ndarray:
    texts = iter(texts)
    with tempfile.TemporaryFile() as file:
        while chunk := list(itertools.islice(texts, _CHUNK)):
            vectors_NxG = embed(guide, guide.embedding_rows(chunk, embedding), embedding)
            file.write(vectors_NxG.astype(np.float32).tobytes())
        mapped = np.memmap(file, np.float32, "r").view(np.ndarray)
    return mapped.reshape(-1, vectors_NxG.shape[1])
