"""Random numbers that are looked up by a key instead of drawn in order."""

import numpy as np

from bert_jax.base.hashes import mixed

# The purpose of a random stream; part of its key, so that another number gives other batches.
PLAN_TAG, BLOCK_ORDER_TAG, SHUFFLE_TAG, CORRUPTION_TAG = range(4)
REPEAT_TAG, ROW_ORDER_TAG, RATE_TAG = range(5, 8)

# Four rounds mix a million indices well; a handful of indices needs more.
_ROUNDS = 8


def random_key(*parts: int) -> np.ndarray:
    """Returns a Philox key, uint64 [2], that mixes integers of up to 64 bits each."""
    # Each part takes two words. With SeedSequence's own splitting, the keys of (2**32, ...) and
    # (0, 1, ...) could be equal.
    words = [word for part in parts for word in (part & 0xFFFFFFFF, part >> 32 & 0xFFFFFFFF)]
    return np.random.SeedSequence(words).generate_state(2, np.uint64)


def keyed_generator(*parts: int) -> np.random.Generator:
    """Returns the random stream of a key; equal keys give equal streams."""
    return np.random.Generator(np.random.Philox(key=random_key(*parts)))


def draw_rows(
    key: np.ndarray, first_example: int, num_examples: int, num_columns: int
) -> np.ndarray:
    """Draws random bits for consecutive examples; an example always gets the same bits.

    Args:
      key: uint64 [2], the Philox key of the stream.
      first_example: The number of the first example; any size of int.
      num_examples: B.
      num_columns: C, which must be the same in every call for a stream.

    Returns:
      uint64 [B, C], uniform over 64 bits.
    """
    # Philox makes 4 numbers at a time and advances by fours.
    fours = -(-num_columns // 4)
    philox = np.random.Philox(key=key)
    philox.advance(int(first_example) * fours)
    bits = np.random.Generator(philox).integers(
        0, 2**64, size=num_examples * fours * 4, dtype=np.uint64
    )
    return bits.reshape(num_examples, fours * 4)[:, :num_columns]


def permuted(index_N: np.ndarray, size: int, key: np.ndarray) -> np.ndarray:
    """Applies a keyed permutation of the numbers below `size` to indices.

    The permutation is computed, not stored. It is a Feistel network over the next even number
    of bits; results of `size` or more pass through it again, which keeps it a permutation.

    Args:
      index_N: int64, each below `size`.
      size: The length of the permutation.
      key: uint64 [2].

    Returns:
      int64 [N].
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    round_keys = np.random.Philox(key=key).random_raw(_ROUNDS)
    index_N = index_N.astype(np.uint64)
    outside = np.arange(len(index_N))
    while outside.size:
        left, right = index_N[outside] >> half, index_N[outside] & mask
        for round_key in round_keys:
            left, right = right, left ^ (mixed(right + round_key) & mask)
        index_N[outside] = left << half | right
        outside = outside[index_N[outside] >= size]
    return index_N.astype(np.int64)
