"""BART's corruption: sentences are permuted, then spans of words become one mask each.

The rules are those of `DenoisingDataset` in fairseq's denoising_dataset.py with the options
`--permute-sentences`, `--mask-length span-poisson`, `--replace-length 1`, `--mask-random` and
`--poisson-lambda`. There are four differences:

- Sentences are those of the token store. fairseq ends them at the piece "." of GPT-2's vocabulary.
- Random tokens are never padding, unknown, [CLS] or [SEP]; in fairseq, only never [CLS].
- An inserted token that has no room in the row is left out. No text is lost in this way.
- The number of masked words is computed in float64. fairseq's float32 masks one word more in some
  rows: 16 of 50 words, not 15.
"""

import dataclasses

import numpy as np
from scipy.special import pdtr

from bert_jax.base.batch import DENOISING_FIELDS, BatchFields
from bert_jax.batches.corruption.choose import num_to_predict, random_columns, uniform, word_starts
from bert_jax.batches.random_keys import draw_rows
from bert_jax.config.data import DATA

# Lengths with a smaller probability than float64 resolves are left out; `DATA` bounds the mean.
_LONGEST_SPAN = 400


class Denoising:
    """Permutes the sentences of a row and masks spans of words; the target is the row itself.

    Args:
      tokenizer: Has `vocab_size`, the ids of the special tokens and `is_word_start_V` (bool by
        id).
      spec: A `StreamSpec`: `masked_lm_prob`, `mask_fractions`, `poisson_lambda` and
        `permute_sentence_ratio` are used. Nothing is kept: the second of the fractions must be 0.

    Attributes:
      fields: The arrays that `corrupt` adds to a batch.
    """

    fields: BatchFields = DENOISING_FIELDS
    needs_sentences = True

    def __init__(self, tokenizer, spec, store=None):
        self._masked_lm_prob, self._random_fraction = spec.masked_lm_prob, spec.mask_fractions[2]
        self._poisson_lambda, self._permuted = spec.poisson_lambda, spec.permute_sentence_ratio
        # The probability that a span of at least one word has at most 1, 2, ... words.
        none, *up_to = pdtr(np.arange(_LONGEST_SPAN), self._poisson_lambda)
        self._up_to_K = (np.array(up_to) - none) / (1 - none)
        self._is_word_start_V = np.asarray(tokenizer.is_word_start_V, dtype=bool)
        self._pad_id, self._sep_id = tokenizer.pad_id, tokenizer.sep_id
        self._mask_id = tokenizer.mask_id
        specials = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id]
        ids = np.arange(tokenizer.vocab_size, dtype=np.int32)
        self._random_ids = np.delete(ids, specials)

    @staticmethod
    def held_out(spec):
        """Returns the `StreamSpec` of held-out rows, which are corrupted as BART's are."""
        return dataclasses.replace(
            spec,
            masked_lm_prob=0.3,
            mask_fractions=(0.9, 0.0, 0.1),
            poisson_lambda=DATA["poisson_lambda"].default,
            permute_sentence_ratio=DATA["permute_sentence_ratio"].default,
        )

    def corrupt(
        self, batch: dict[str, np.ndarray], key: np.ndarray, first_example: int
    ) -> dict[str, np.ndarray]:
        """Corrupts B consecutive examples.

        Args:
          batch: `input_ids` int32 [B, L], rows `[CLS] text [SEP]`; `attention_mask` (1 on real
            tokens); `begins_sentence` bool [B, L]; and `begins_word` bool [B, L] if the store has
            word starts. The arrays are not changed.
          key: uint64 [2], the key of the stream.
          first_example: The number of the first row in the stream.

        Returns:
          int32 [B, L] each: `input_ids` and `attention_mask` of the corrupted rows, which are
          shorter than before or, rarely, longer; `labels`, the rows as they were;
          `decoder_input_ids`, the same behind a [SEP] and without the last token; and
          `decoder_attention_mask`, 1 on the real tokens of both.
        """
        ids_BxL, mask_BxL = batch["input_ids"], batch["attention_mask"]
        num_rows, length = ids_BxL.shape
        slots = int(np.ceil(length * self._masked_lm_prob))
        sizes = [length] * 5 + [slots] * 4
        bits_BxC = draw_rows(key, first_example, num_rows, sum(sizes))
        moved, order, start, place, new, size, zeros, coin, which = np.split(
            bits_BxC, np.cumsum(sizes)[:-1], axis=1
        )

        column_L = np.arange(length)
        last_Bx1 = mask_BxL.sum(axis=1, keepdims=True) - 1
        is_text_BxL = (column_L > 0) & (column_L < last_Bx1)
        begins_word_BxL = batch.get("begins_word")
        if begins_word_BxL is None:
            begins_word_BxL = self._is_word_start_V[ids_BxL]
        begins_sentence_BxL = word_starts(is_text_BxL, batch["begins_sentence"])
        is_start_BxL = word_starts(is_text_BxL, begins_word_BxL) | begins_sentence_BxL
        column_BxL = permuted_columns(
            is_text_BxL, begins_sentence_BxL, self._permuted, moved, order
        )
        is_start_BxL = np.take_along_axis(is_start_BxL, column_BxL, axis=1)
        infilled_BxL = np.take_along_axis(ids_BxL, column_BxL, axis=1)

        budget_B = num_to_predict(is_start_BxL.sum(axis=1), self._masked_lm_prob, slots, "up")
        size_BxK, num_inserted_B = self._span_sizes(budget_B, uniform(size), uniform(zeros))
        row_N, slot_N = np.nonzero(size_BxK)  # N spans
        start_N = random_columns(is_start_BxL, start)[slot_N, row_N]
        is_covered_BxL, is_first_BxL = _covered(
            is_text_BxL, is_start_BxL, row_N, start_N, size_BxK[row_N, slot_N]
        )
        infilled_BxL[row_N, start_N] = self._replacements(
            uniform(coin[row_N, slot_N]) < self._random_fraction, which[row_N, slot_N]
        )
        is_left_BxL = (mask_BxL != 0) & (~is_covered_BxL | is_first_BxL)

        left_B = is_left_BxL.sum(axis=1)
        num_inserted_B = np.minimum(num_inserted_B, length - left_B)
        end_Bx1 = (left_B + num_inserted_B)[:, None]
        is_between_BxL = (column_L > 0) & (column_L < end_Bx1 - 1)
        place_GxB = random_columns(is_between_BxL, place)
        place_M, row_M = np.nonzero(np.arange(len(place_GxB))[:, None] < num_inserted_B)
        num_random_B = np.ceil(num_inserted_B * self._random_fraction)
        column_M = place_GxB[place_M, row_M]
        is_inserted_BxL = np.zeros(ids_BxL.shape, bool)
        is_inserted_BxL[row_M, column_M] = True
        corrupted_BxL = np.full_like(ids_BxL, self._pad_id)
        is_real_BxL = column_L < end_Bx1
        corrupted_BxL[is_real_BxL & ~is_inserted_BxL] = infilled_BxL[is_left_BxL]
        corrupted_BxL[row_M, column_M] = self._replacements(
            place_M < num_random_B[row_M], new[row_M, column_M]
        )

        shifted_BxL = np.roll(ids_BxL, 1, axis=1)
        shifted_BxL[:, 0] = self._sep_id
        return {
            "input_ids": corrupted_BxL,
            "attention_mask": is_real_BxL.astype(np.int32),
            "decoder_input_ids": np.where(mask_BxL, shifted_BxL, self._pad_id).astype(np.int32),
            "decoder_attention_mask": mask_BxL.astype(np.int32),
            "labels": ids_BxL,
        }

    def _span_sizes(
        self, budget_B: np.ndarray, size_BxK: np.ndarray, zeros_BxK: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws the lengths of spans until they add up to the budget; the last one is trimmed.

        A Poisson variate is 0 a geometric number of times before it is positive. Each column is
        one positive length and the zeros before it, so that `budget` columns always suffice.

        Args:
          budget_B: The number of words to mask.
          size_BxK, zeros_BxK: float64, uniform in [0, 1).

        Returns:
          The lengths in words, int64 [B, K], 0 where there is no span; and the number of zeros
          drawn before the budget was used up, int64 [B].
        """
        length_BxK = 1 + np.searchsorted(self._up_to_K, size_BxK, side="right")
        before_BxK = np.cumsum(length_BxK, axis=1) - length_BxK
        length_BxK = np.clip(budget_B[:, None] - before_BxK, 0, length_BxK)
        num_zeros_BxK = np.floor(-np.log1p(-zeros_BxK) / self._poisson_lambda)
        return length_BxK, (num_zeros_BxK * (length_BxK > 0)).sum(axis=1).astype(np.int64)

    def _replacements(self, is_random_N: np.ndarray, bits_N: np.ndarray) -> np.ndarray:
        """Returns a random id or [MASK] for each of N positions, int32 [N]."""
        which_N = (uniform(bits_N) * len(self._random_ids)).astype(np.int64)
        return np.where(is_random_N, self._random_ids[which_N], self._mask_id)


def permuted_columns(
    is_text_BxL: np.ndarray,
    begins_sentence_BxL: np.ndarray,
    ratio: float,
    choice_bits_BxL: np.ndarray,
    order_bits_BxL: np.ndarray,
) -> np.ndarray:
    """Permutes some of the sentences of each row at random; the others keep their places.

    Args:
      is_text_BxL: bool, the tokens of sentences.
      begins_sentence_BxL: bool, the first token of each sentence; the first token of text is one.
      ratio: The fraction of the sentences to permute, rounded up.
      choice_bits_BxL, order_bits_BxL: uint64, random. The bits at a sentence's first token
        determine whether it is permuted, and its position.

    Returns:
      int64 [B, L]: the column that each token is taken from.
    """
    row_S, _ = np.nonzero(begins_sentence_BxL)  # S sentences
    number_B = begins_sentence_BxL.sum(axis=1)
    first_B = np.cumsum(number_B) - number_B
    rank_S = np.empty_like(row_S)
    rank_S[np.lexsort((choice_bits_BxL[begins_sentence_BxL], row_S))] = np.arange(len(row_S))
    (moved,) = np.nonzero(rank_S - first_B[row_S] < np.ceil(number_B * ratio)[row_S])
    source_S = np.arange(len(row_S))
    order_bits_S = order_bits_BxL[begins_sentence_BxL]
    source_S[moved] = moved[np.lexsort((order_bits_S[moved], row_S[moved]))]

    # T tokens of text.
    _, column_T = np.nonzero(is_text_BxL)
    sentence_T = np.cumsum(begins_sentence_BxL[is_text_BxL]) - 1
    size_S = np.bincount(sentence_T, minlength=len(row_S))
    start_S, new_size_S = np.cumsum(size_S) - size_S, size_S[source_S]
    new_start_S = np.cumsum(new_size_S) - new_size_S
    source_T = np.repeat(start_S[source_S] - new_start_S, new_size_S) + np.arange(len(column_T))
    column_BxL = np.tile(np.arange(is_text_BxL.shape[1]), (len(is_text_BxL), 1))
    column_BxL[is_text_BxL] = column_T[source_T]
    return column_BxL


def _covered(
    is_text_BxL: np.ndarray,
    is_start_BxL: np.ndarray,
    row_N: np.ndarray,
    start_N: np.ndarray,
    size_N: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens in N spans, and the first token of each union of spans that overlap.

    Spans that only touch remain two. A span ends with its row.

    Args:
      is_text_BxL: bool, the tokens that spans may have.
      is_start_BxL: bool, the first token of each word.
      row_N, start_N, size_N: The row, the first column and the number of words of each span. No
        two spans of a row begin at the same word.

    Returns:
      bool [B, L] each.
    """
    num_rows, length = is_text_BxL.shape
    word_BxL = np.maximum(np.cumsum(is_start_BxL, axis=1) - 1, 0)
    word_N = word_BxL[row_N, start_N]
    # By word: whether a span begins there, and whether one that began earlier continues there.
    begins_BxW = np.zeros((num_rows, length + 1), bool)
    begins_BxW[row_N, word_N] = True
    steps_BxW = np.zeros((num_rows, length + 1), np.int64)
    np.add.at(steps_BxW, (row_N, word_N + 1), 1)
    np.add.at(steps_BxW, (row_N, np.minimum(word_N + size_N, length)), -1)
    continues_BxW = np.cumsum(steps_BxW, axis=1) > 0
    is_covered_BxL = np.take_along_axis(begins_BxW | continues_BxW, word_BxL, axis=1)
    is_first_BxL = np.take_along_axis(begins_BxW & ~continues_BxW, word_BxL, axis=1)
    return is_covered_BxL & is_text_BxL, is_first_BxL & is_start_BxL
