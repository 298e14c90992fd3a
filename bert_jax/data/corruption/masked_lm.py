"""BERT's masking: which tokens are predicted, and what replaces them.

The rules are those of `create_masked_lm_predictions` in google-research/bert's
create_pretraining_data.py. About 15 % of a row's tokens are chosen in random order; [CLS] and
[SEP] count but are never chosen. A whole word that no longer fits is skipped. Each chosen token
independently becomes [MASK] (80 %), stays (10 %), or becomes a random entry of the vocabulary
(10 %), special tokens included.
"""

from typing import ClassVar

import numpy as np

from bert_jax.batch import MASKED_LM_FIELDS, BatchFields
from bert_jax.data.corruption.choose import choose_groups, num_to_predict, word_starts
from bert_jax.data.random_streams import draw_rows


class MaskedTokens:
    """Chooses tokens or whole words for prediction, and hides them.

    Args:
      tokenizer: Has `vocab_size`, the ids of `[PAD] [CLS] [SEP] [MASK]` and `is_word_start_V`
        (bool by id). [UNK] may be predicted.
      spec: A `StreamSpec`: `max_predictions_per_seq`, `masked_lm_prob`, `whole_word_masking`
        and `mask_shares` are used.
    """

    fields: ClassVar[BatchFields] = MASKED_LM_FIELDS

    def __init__(self, tokenizer, spec):
        self._max_predictions = spec.max_predictions_per_seq
        self._masked_lm_prob = spec.masked_lm_prob
        self._whole_words = spec.whole_word_masking
        self._shares = spec.mask_shares
        self._mask_id, self._vocab_size = tokenizer.mask_id, tokenizer.vocab_size
        self._is_word_start_V = np.asarray(tokenizer.is_word_start_V, dtype=bool)
        self._is_candidate_V = np.ones(tokenizer.vocab_size, dtype=bool)
        specials = [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
        self._is_candidate_V[specials] = False

    def corrupt(
        self, batch: dict[str, np.ndarray], key: np.ndarray, first_example: int
    ) -> dict[str, np.ndarray]:
        """Masks B consecutive examples.

        Args:
          batch: `input_ids` int32 [B, L] and `attention_mask` (1 on real tokens); not changed.
          key: uint64 [2], the key of the stream.
          first_example: The number of the first row in the stream.

        Returns:
          `input_ids` int32 [B, L] with replacements, `masked_lm_positions` (ascending) and
          `masked_lm_ids` (the true ids) int32 [B, M], and `masked_lm_weights` float32 [B, M].
          Where a row has fewer than M predictions, the last three are 0.
        """
        ids_BxL, mask_BxL = batch["input_ids"], batch["attention_mask"]
        num_rows, length = ids_BxL.shape
        slots = self._max_predictions
        bits_BxC = draw_rows(key, first_example, num_rows, length + 2 * slots)

        is_candidate_BxL = self._is_candidate_V[ids_BxL] & (mask_BxL != 0)
        is_start_BxL = is_candidate_BxL
        if self._whole_words:
            is_start_BxL = word_starts(is_candidate_BxL, self._is_word_start_V[ids_BxL])
        quota_B = num_to_predict(mask_BxL.sum(axis=1), self._masked_lm_prob, slots)
        chosen_BxL = choose_groups(is_candidate_BxL, is_start_BxL, quota_B, bits_BxC[:, :length])

        row_T, column_T = np.nonzero(chosen_BxL)  # Row by row, columns ascending.
        chosen_B = chosen_BxL.sum(axis=1)
        slot_T = np.arange(row_T.size) - np.repeat(np.cumsum(chosen_B) - chosen_B, chosen_B)
        true_id_T = ids_BxL[row_T, column_T]
        masked_ids_BxL = ids_BxL.copy()
        masked_ids_BxL[row_T, column_T] = self._replaced(
            true_id_T, bits_BxC[row_T, length + slot_T], bits_BxC[row_T, length + slots + slot_T]
        )

        positions_BxM = np.zeros((num_rows, slots), dtype=np.int32)
        ids_BxM = np.zeros((num_rows, slots), dtype=np.int32)
        weights_BxM = np.zeros((num_rows, slots), dtype=np.float32)
        positions_BxM[row_T, slot_T] = column_T
        ids_BxM[row_T, slot_T] = true_id_T
        weights_BxM[row_T, slot_T] = 1.0
        return {
            "input_ids": masked_ids_BxL,
            "masked_lm_positions": positions_BxM,
            "masked_lm_ids": ids_BxM,
            "masked_lm_weights": weights_BxM,
        }

    def _replaced(
        self, true_id_T: np.ndarray, action_bits_T: np.ndarray, id_bits_T: np.ndarray
    ) -> np.ndarray:
        """Returns the id that replaces each chosen token, by `mask_shares`."""
        masked, unchanged, _ = self._shares
        # Uniform in [0, 1), 53 bits.
        action_T, which_T = (
            (bits_T >> np.uint64(11)) * 2.0**-53 for bits_T in (action_bits_T, id_bits_T)
        )
        random_id_T = (which_T * self._vocab_size).astype(np.int32)
        return np.where(
            action_T < masked,
            self._mask_id,
            np.where(action_T < masked + unchanged, true_id_T, random_id_T),
        )
