"""Masking of runs of whole words: SpanBERT's spans, and ALBERT's n-grams.

`choose_spans` and `choose_ngrams` are called like `choose.choose_groups`, with two random numbers
for each position. They take the words of a row in random order; all rows are processed in step.
"""

from collections.abc import Sequence

import numpy as np

from bert_jax.batches.corruption.choose import random_columns, uniform
from bert_jax.batches.corruption.masked_lm import MaskingRules

# Probabilities of 1, 2, ... words. SpanBERT: geometric with p = 0.2, cut off after 10 words
# (--geometric-p and --span-upper in its pre-training command).
SPAN_LENGTHS = tuple(0.2 * 0.8**words / (1 - 0.8**10) for words in range(10))
# ALBERT: proportional to 1 / n (--ngram and --favor_shorter_ngram of its
# create_pretraining_data.py).
NGRAM_LENGTHS = (6 / 11, 3 / 11, 2 / 11)


def choose_spans(
    is_candidate_BxL: np.ndarray,
    is_start_BxL: np.ndarray,
    quota_B: np.ndarray,
    bits_Bx2L: np.ndarray,
) -> np.ndarray:
    """Chooses spans of words until exactly the quota is reached.

    The rules are those of `PairWithSpanMaskingScheme.mask` in SpanBERT's masking.py. A span
    begins with the word of a random token that is not chosen yet. It may run into chosen tokens,
    which count once. It ends before the next token that is not a candidate, or where the quota is
    reached, even inside a word.

    Args:
      is_candidate_BxL: bool, the tokens that may be chosen.
      is_start_BxL: bool, the candidates that begin a word; see `choose.word_starts`.
      quota_B: int64, the number of tokens to choose in each row.
      bits_Bx2L: uint64, random.

    Returns:
      bool [B, L]: the chosen tokens.
    """
    words = _Words(is_candidate_BxL, is_start_BxL)
    order_bits_BxL, length_bits_BxL = np.split(bits_Bx2L, 2, axis=1)
    column_L = np.arange(is_start_BxL.shape[1], dtype=np.int32)
    chosen_BxL = np.zeros_like(is_candidate_BxL)
    left_B = np.minimum(quota_B, is_candidate_BxL.sum(axis=1))
    # The first unchosen token in a random order is a uniform draw from all unchosen tokens.
    for column_B in random_columns(is_candidate_BxL, order_bits_BxL):
        row_R = np.flatnonzero(left_B)
        if not row_R.size:
            break
        row_R = row_R[~chosen_BxL[row_R, column_B[row_R]]]
        column_R = column_B[row_R]
        number_R = _draw_number(length_bits_BxL[row_R, column_R], SPAN_LENGTHS)
        first_R = words.first_BxL[row_R, column_R]
        end_R = words.end(row_R, column_R, number_R)
        inside_RxL = (column_L >= first_R[:, None]) & (column_L < end_R[:, None])
        inside_RxL &= ~chosen_BxL[row_R]
        size_R, left_R = inside_RxL.sum(axis=1), left_B[row_R]
        over_R = np.flatnonzero(size_R > left_R)
        inside_RxL[over_R] &= inside_RxL[over_R].cumsum(axis=1) <= left_R[over_R, None]
        chosen_BxL[row_R] |= inside_RxL
        left_B[row_R] -= np.minimum(size_R, left_R)
    return chosen_BxL


def choose_ngrams(
    is_candidate_BxL: np.ndarray,
    is_start_BxL: np.ndarray,
    quota_B: np.ndarray,
    bits_Bx2L: np.ndarray,
) -> np.ndarray:
    """Chooses n-grams of whole words in random order, up to the quota.

    The rules are those of `create_masked_lm_predictions` in ALBERT's create_pretraining_data.py.
    An n-gram that exceeds the quota loses words at its end. It is skipped if its first word exceeds
    the quota, or if it overlaps a chosen n-gram. An n-gram ends before the next token that is not
    a candidate. (In the original it may cross the [SEP] between two segments.)

    Args:
      is_candidate_BxL, is_start_BxL, bits_Bx2L: See `choose_spans`.
      quota_B: int64, the maximal number of tokens to choose in each row.

    Returns:
      bool [B, L]: the chosen tokens.
    """
    num_rows, length = is_start_BxL.shape
    words = _Words(is_candidate_BxL, is_start_BxL)
    order_bits_BxL, length_bits_BxL = np.split(bits_Bx2L, 2, axis=1)
    # The last, extra column stands for words past the end of a text.
    is_taken_BxL = np.zeros((num_rows, length + 1), bool)
    left_B = quota_B.copy()
    row_B, word_Kx1 = np.arange(num_rows), np.arange(len(NGRAM_LENGTHS))[:, None]
    for column_B in random_columns(is_start_BxL, order_bits_BxL):
        number_B = _draw_number(length_bits_BxL[row_B, column_B], NGRAM_LENGTHS)
        number_B *= is_start_BxL[row_B, column_B]
        end_KxB = words.end(row_B, column_B, word_Kx1 + 1)
        size_KxB = end_KxB - column_B
        # Sizes ascend, so the words that fit come first.
        inside_KxB = (word_Kx1 < number_B) & (size_KxB <= left_B)
        # The first column of each word, or the column after the text.
        start_KxB = np.concatenate([column_B[None], end_KxB[:-1]])
        inside_KxB &= ~(is_taken_BxL[row_B, start_KxB] & inside_KxB).any(axis=0)
        is_taken_BxL[row_B, start_KxB] |= inside_KxB
        left_B -= (size_KxB * inside_KxB).max(axis=0)
        if not left_B.any():
            break
    return is_taken_BxL[row_B[:, None], words.first_BxL] & is_candidate_BxL


class _Words:
    """Where the words of rows begin and end; see `choose_spans` for the arguments."""

    def __init__(self, is_candidate_BxL: np.ndarray, is_start_BxL: np.ndarray):
        num_rows, length = is_start_BxL.shape
        column_L = np.arange(length, dtype=np.int32)
        self.first_BxL = np.maximum.accumulate(np.where(is_start_BxL, column_L, 0), axis=1)
        # The next token that is not a candidate.
        stop_BxL = np.where(is_candidate_BxL, np.int32(length), column_L)
        self._stop_BxL = np.minimum.accumulate(stop_BxL[:, ::-1], axis=1)[:, ::-1]
        # The words of all rows, as flat positions, and the end of the last row.
        self._position_W = np.append(np.flatnonzero(is_start_BxL), num_rows * length)
        self._word_BxL = (is_start_BxL.ravel().cumsum(dtype=np.int32) - 1).reshape(
            is_start_BxL.shape
        )

    def end(self, row: np.ndarray, column: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Returns the column after `number` words, or after the text if it has fewer.

        The word of the token at (`row`, `column`) counts as the first.
        """
        word = np.minimum(self._word_BxL[row, column] + number, len(self._position_W) - 1)
        following = self._position_W[word] - row * self._word_BxL.shape[1]
        return np.minimum(following, self._stop_BxL[row, column])


def _draw_number(bits: np.ndarray, probabilities: Sequence[float]) -> np.ndarray:
    """Draws numbers of words, int64, from random bits and the probabilities of 1, 2, ... words."""
    return 1 + np.searchsorted(np.cumsum(probabilities)[:-1], uniform(bits), side="right")


# `PairWithSpanMaskingScheme` in SpanBERT's masking.py, with the options of its pre-training
# command.
SPANS = MaskingRules(
    whole_words=True,
    rate_of="text",
    rounding="up",
    choose=choose_spans,
    choice_draws=2,
    coin="span",
    random_ids="text",
    boundaries=True,
)

# ALBERT's create_pretraining_data.py. Only the choice of tokens differs from BERT.
NGRAMS = MaskingRules(whole_words=True, choose=choose_ngrams, choice_draws=2)
