"""Draws a bounded, even and repeatable sample of documents to train a vocabulary on."""

from bert_jax.base.hashes import stable_hash


class DocumentSample:
    """Chooses the documents with the lowest hashes, as many as fit in `max_bytes`.

    The choice depends only on the indices and sizes of the documents. The corpus is sampled
    evenly although its size is not known in advance: when the sample becomes too large, the
    bound on the hash is halved.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._bound = 2**64
        self._kept: list[tuple[int, int, int]] = []
        self._num_bytes = 0

    def offer(self, index: int, num_bytes: int) -> None:
        """Adds a document to the sample if its hash is low enough."""
        key = stable_hash("vocabulary", index)
        if key >= self._bound:
            return
        self._kept.append((key, index, num_bytes))
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes and len(self._kept) > 1:
            self._bound //= 2
            self._kept = [kept for kept in self._kept if kept[0] < self._bound] or self._kept[:1]
            self._num_bytes = sum(size for _, _, size in self._kept)

    def chosen(self) -> list[int]:
        """Returns the indices of the documents in the sample, in order."""
        return [index for _, index, _ in self._kept]
