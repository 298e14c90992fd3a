"""Draws a bounded, even and repeatable sample of documents to train a vocabulary on."""

import hashlib
from collections.abc import Iterator

from bert_jax.store.tokenization import sentences_of
from bert_jax.text.corpus import Document


def stable_hash(*parts: object) -> int:
    """Returns a 64-bit hash that is the same on every machine."""
    text = ":".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


class DocumentSample:
    """Keeps the documents with the lowest hashes, as many as fit in `max_bytes`.

    The choice depends only on the indices and sizes of the documents. The corpus is sampled
    evenly although its size is not known in advance: when the sample becomes too large, the
    bound on the hash is halved.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._bound = 2**64
        self._kept: list[tuple[int, bytes, bool]] = []
        self._num_bytes = 0

    def offer(self, index: int, document: Document) -> None:
        """Adds a document to the sample if its hash is low enough."""
        key = stable_hash("vocabulary", index)
        if key >= self._bound:
            return
        # One rare character makes a str two or four times as large as its UTF-8.
        text = document.text.encode()
        self._kept.append((key, text, document.is_split))
        self._num_bytes += len(text)
        while self._num_bytes > self._max_bytes and len(self._kept) > 1:
            self._bound //= 2
            self._kept = [kept for kept in self._kept if kept[0] < self._bound] or self._kept[:1]
            self._num_bytes = sum(len(text) for _, text, _ in self._kept)

    def sentences(self, language: str = "") -> Iterator[str]:
        """Yields the sentences of the sample in the order of the corpus."""
        for _, text, is_split in self._kept:
            yield from sentences_of(text.decode(), is_split, language)
