"""Computes keys of documents from their token ids; copies of a document share a key.

An exact copy has the same hash of all ids. Near copies have most n-grams of ids in common. If two
documents have a fraction J of all their n-grams in common, the lowest hash of the n-grams of one
is that of the other with probability J (Broder 1997, On the resemblance and containment of
documents). A key consists of 8 such hashes, and each document has 14 keys, so that two documents
share one with probability 1 - (1 - J^8)^14: 0.92 for J=0.8, 0.05 for J=0.5. Lee et al. 2021
(Deduplicating training data makes language models better) remove near copies in the same way.
"""

import hashlib
from collections.abc import Iterator

import numpy as np

from bert_jax.base.hashes import mixed, stable_hash
from bert_jax.store.part import Part

NGRAM_TOKENS = 5
_NUM_KEYS, _HASHES_PER_KEY = 14, 8
# Documents are read in blocks of this size; the hashes of a block fit in the cache of a core.
_BLOCK_TOKENS = 2**16
_MAX = np.uint32(2**32 - 1)


def _multipliers(name: str, *shape: int) -> np.ndarray:
    """Returns odd 64-bit numbers that are the same on every machine."""
    numbers = [stable_hash(name, i) | 1 for i in range(np.prod(shape))]
    return np.array(numbers, np.uint64).reshape(shape)


_OF_TOKENS = _multipliers("token of an n-gram", NGRAM_TOKENS)
_OF_HASHES = _multipliers("hash function", _NUM_KEYS * _HASHES_PER_KEY).astype(np.uint32)
_OF_KEYS = _multipliers("hash of a key", _NUM_KEYS, _HASHES_PER_KEY, 1)


def document_keys(split: Part, kind: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the keys of the documents of a split, in bounded memory.

    Args:
      split: A part of a split.
      kind: "exact", or "near", where documents that have no n-gram get the key of "exact".

    Yields:
      Numbers of documents, int64 [N], and a key of each, uint64 [N].
    """
    start_D1 = split.sentence_starts[split.document_starts]
    is_near_D = np.diff(start_D1) >= (NGRAM_TOKENS if kind == "near" else np.inf)
    lowest_H = np.full(len(_OF_HASHES), _MAX)
    digest = hashlib.blake2b(digest_size=8)
    for begin in range(0, split.num_tokens, _BLOCK_TOKENS):
        end = min(begin + _BLOCK_TOKENS, split.num_tokens)
        read_end = min(end + NGRAM_TOKENS - 1, split.num_tokens)
        token_T = split.tokens_at(np.arange(begin, read_end))
        first = int(np.searchsorted(start_D1, begin, side="right")) - 1
        stop = int(np.searchsorted(start_D1, end, side="left"))
        start_N = np.maximum(start_D1[first:stop] - begin, 0)
        stop_N = start_D1[first + 1 : stop + 1] - begin
        is_whole_N, is_near_N = stop_N <= end - begin, is_near_D[first:stop]

        # The first document may have begun in an earlier block.
        for number in np.flatnonzero(~is_near_N).tolist():
            digest.update(token_T[start_N[number] : min(stop_N[number], end - begin)].tobytes())
            if is_whole_N[number]:
                key = np.frombuffer(digest.digest(), "<u8")
                yield np.array([first + number]), key
                digest = hashlib.blake2b(digest_size=8)

        if is_near_N.any():
            last_N = np.minimum(stop_N - NGRAM_TOKENS + 1, end - begin)
            lowest_HxN = _lowest_hashes(token_T, start_N, last_N)
            lowest_HxN[:, 0] = np.minimum(lowest_HxN[:, 0], lowest_H)
            lowest_H = np.full_like(lowest_H, _MAX) if is_whole_N[-1] else lowest_HxN[:, -1]
            ready_M = np.flatnonzero(is_whole_N & is_near_N)
            key_MxK = _joined(lowest_HxN[:, ready_M])
            yield np.repeat(first + ready_M, _NUM_KEYS), key_MxK.ravel()


def _lowest_hashes(token_T: np.ndarray, start_N: np.ndarray, stop_N: np.ndarray) -> np.ndarray:
    """Returns the lowest of each hash of the n-grams that begin in ranges of a text.

    Args:
      token_T: int32, the ids.
      start_N, stop_N: The ranges, in order and without overlap. An empty one gives the highest
        number.

    Returns:
      uint32 [H, N].
    """
    lowest_HxN = np.full((len(_OF_HASHES), len(start_N)), _MAX)
    has_any_N = start_N < stop_N
    if not has_any_N.any():
        return lowest_HxN
    wide_T = token_T.astype(np.uint64)
    # One more n-gram than there are: reduceat takes no index of the end.
    ngram_G = np.zeros(len(token_T) - NGRAM_TOKENS + 2, np.uint64)
    for i, multiplier in enumerate(_OF_TOKENS):
        ngram_G[:-1] += wide_T[i : len(ngram_G) - 1 + i] * multiplier
    ngram_G = (mixed(ngram_G) >> np.uint64(32)).astype(np.uint32)
    bounds = np.stack([start_N, stop_N], axis=1)[has_any_N].ravel()
    hash_G = np.empty_like(ngram_G)
    for i, multiplier in enumerate(_OF_HASHES):
        # The n-grams are random numbers already; the product with an odd number permutes them.
        np.multiply(ngram_G, multiplier, out=hash_G)
        lowest_HxN[i, has_any_N] = np.minimum.reduceat(hash_G, bounds)[::2]
    return lowest_HxN


def _joined(lowest_HxN: np.ndarray) -> np.ndarray:
    """Returns the keys of N documents, uint64 [N, K], from their lowest hashes."""
    hash_KxRxN = lowest_HxN.astype(np.uint64).reshape(_NUM_KEYS, _HASHES_PER_KEY, -1)
    return mixed((hash_KxRxN * _OF_KEYS).sum(axis=1)).T
