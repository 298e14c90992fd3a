"""Chooses the tokens to predict in each row."""

import numpy as np


def uniform(bits: np.ndarray) -> np.ndarray:
    """Converts random uint64 to float64, uniform in [0, 1), with 53 random bits."""
    return (bits >> np.uint64(11)) * 2.0**-53


def num_to_predict(
    size_B: np.ndarray,
    masked_lm_prob: float,
    max_predictions: int,
    rounding: str = "nearest",
    uniform_B: np.ndarray | float = 0.0,
) -> np.ndarray:
    """Returns the number of tokens or groups to predict in each row, int64 [B].

    Args:
      rounding: "nearest", with halves to even and at least 1, as in google-research/bert; "up"; or
        "random", which adds `uniform_B` and rounds down, as in fairseq's MaskTokensDataset.
      uniform_B: A random number in [0, 1) for each row.
    """
    wanted_B = size_B * masked_lm_prob
    if rounding == "nearest":
        wanted_B = np.maximum(1, np.rint(wanted_B))
    elif rounding == "up":
        wanted_B = np.ceil(wanted_B)
    else:
        wanted_B = np.floor(wanted_B + uniform_B)
    return np.minimum(max_predictions, wanted_B.astype(np.int64))


def weighted_order(bits: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns uint64 sort keys; sorting by them is a weighted draw without replacement.

    The keys order like exponential variates whose rates are the weights (Efraimidis and Spirakis,
    2006, Weighted random sampling with a reservoir).
    """
    variates = -np.log1p(-uniform(bits)) / weights
    # Positive floats sort like their bits; the sign bit is 0.
    return variates.view(np.uint64) << np.uint64(1)


def word_starts(is_candidate_BxL: np.ndarray, begins_word_BxL: np.ndarray) -> np.ndarray:
    """Returns the candidates, bool [B, L], that begin a group of whole words.

    The first candidate of a segment always begins a group: truncation may have cut its
    word, and no group crosses a special token. (In google-research/bert, such pieces at
    the beginning of B belong to A's last word.)
    """
    follows_BxL = np.zeros_like(is_candidate_BxL)
    follows_BxL[:, 1:] = is_candidate_BxL[:, :-1]
    return is_candidate_BxL & (begins_word_BxL | ~follows_BxL)


def random_columns(is_wanted_BxL: np.ndarray, bits_BxL: np.ndarray) -> np.ndarray:
    """Returns the wanted columns of each row in random order, int64 [G, B].

    G is the largest number of wanted columns of a row. Rows with fewer are padded with unwanted
    columns. The result is transposed because callers take one column of every row at a time.
    """
    length = is_wanted_BxL.shape[1]
    # Each key carries its own column: sorting is cheaper than argsort, and no two keys are
    # equal. Columns that are not wanted have the top bit, which sorts them last.
    column_bits = np.uint64((length - 1).bit_length())
    column_mask = (np.uint64(1) << column_bits) - np.uint64(1)
    key_BxL = (bits_BxL >> np.uint64(1) & ~column_mask) | np.arange(length, dtype=np.uint64)
    key_BxL |= (~is_wanted_BxL).astype(np.uint64) << np.uint64(63)
    key_BxL.sort(axis=1)
    max_wanted = int(is_wanted_BxL.sum(axis=1).max(initial=0))
    return (key_BxL[:, :max_wanted].T & column_mask).astype(np.int64)


def choose_groups(
    is_candidate_BxL: np.ndarray,
    is_start_BxL: np.ndarray,
    quota_B: np.ndarray,
    bits_BxL: np.ndarray,
    max_groups_B: np.ndarray | None = None,
) -> np.ndarray:
    """Chooses groups of tokens in random order; groups beyond the quota are skipped.

    All rows are processed in step. Single tokens are groups of one.

    Args:
      is_candidate_BxL: bool, the tokens that may be chosen.
      is_start_BxL: bool, the candidates that begin a group. A group ends before the next start
        and before the next token that is not a candidate.
      quota_B: int64, the maximal number of tokens to choose in each row.
      bits_BxL: uint64, random. The bits of a group's first token determine its position
        in the order.
      max_groups_B: int64, the number of groups, the first in the order, that may be chosen. If
        None, all may be.

    Returns:
      bool [B, L]: the chosen tokens.
    """
    num_rows, length = is_start_BxL.shape
    num_groups_B = is_start_BxL.sum(axis=1)
    column_GxB = random_columns(is_start_BxL, bits_BxL)

    # A group's size is the distance to the next start or non-candidate.
    edge_flat = np.flatnonzero(is_start_BxL | ~is_candidate_BxL)
    size_flat = np.zeros(num_rows * length, dtype=np.int64)
    row_end = (edge_flat // length + 1) * length
    size_flat[edge_flat] = np.minimum(np.append(edge_flat[1:], num_rows * length), row_end)
    size_flat[edge_flat] -= edge_flat
    row_origin_B = np.arange(num_rows) * length
    size_GxB = size_flat[column_GxB + row_origin_B]
    # Sizes past a row's last group are larger than any quota and never taken.
    if max_groups_B is not None:
        num_groups_B = np.minimum(num_groups_B, max_groups_B)
    size_GxB[np.arange(len(column_GxB))[:, None] >= num_groups_B] = length + 1

    left_B = quota_B.copy()
    taken_GxB = np.zeros(size_GxB.shape, dtype=bool)
    for group, size_B in enumerate(size_GxB):
        fits_B = np.less_equal(size_B, left_B, out=taken_GxB[group])
        left_B -= size_B * fits_B
        if not left_B.any():
            break

    # A token is chosen if the first token of its group is.
    start_taken = np.zeros(num_rows * length, dtype=bool)
    start_taken[(column_GxB + row_origin_B)[taken_GxB]] = True
    start_taken_BxL = start_taken.reshape(num_rows, length)
    if is_start_BxL.sum() == is_candidate_BxL.sum():  # Every group is one token.
        return start_taken_BxL
    latest_BxL = np.maximum.accumulate(np.where(is_start_BxL, np.arange(length), 0), axis=1)
    return np.take_along_axis(start_taken_BxL, latest_BxL, axis=1) & is_candidate_BxL
