"""Draws a bounded, even and repeatable sample of documents to train a vocabulary on."""

from bert_jax.base.hashes import stable_hash
from bert_jax.text.named_sources import REPEAT_UNIT


class DocumentSample:
    """Chooses the documents with the lowest hashes, as many as fit in `max_bytes`.

    The choice depends only on the indices, sizes and weights of the documents. The corpus is
    sampled evenly although its size is not known in advance: when the sample becomes too large,
    the bound on the hash is halved.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._bound = 2**64
        self._kept: list[tuple[int, int, int]] = []
        self._num_bytes = 0

    def offer(self, index: int, num_bytes: int, weight: int = REPEAT_UNIT) -> None:
        """Adds a document to the sample if its hash is low enough.

        Args:
          weight: How often the document is expected in a sample of everything, in units of
            1 / REPEAT_UNIT. A copy has the hash of the document, plus 2**64 for each copy before
            it; all are divided by the weight.
        """
        hash_64 = stable_hash("vocabulary", index)
        for copy in range(-(-weight // REPEAT_UNIT)):
            key = (hash_64 + (copy << 64)) * REPEAT_UNIT // weight
            if key >= self._bound:
                # The keys of further copies are greater.
                return
            self._kept.append((key, index, num_bytes))
            self._num_bytes += num_bytes
            while self._num_bytes > self._max_bytes and len(self._kept) > 1:
                self._bound //= 2
                kept = [kept for kept in self._kept if kept[0] < self._bound]
                self._kept = kept or self._kept[:1]
                self._num_bytes = sum(size for _, _, size in self._kept)

    def chosen(self) -> list[int]:
        """Returns the indices of the documents in the sample, in order; some more than once."""
        return [index for _, index, _ in self._kept]
