"""Masked diffusion: each row is masked at a rate of its own, from nearly none to all tokens.

The rates follow Sahoo et al. 2024 (arXiv:2406.07524, section 4, the low-discrepancy sampler) and
Nie et al. 2025 (arXiv:2502.09992, appendix A).
"""

import dataclasses

import numpy as np

from bert_jax.base.batch import DIFFUSION_FIELDS, HELD_OUT_RATES, BatchFields
from bert_jax.batches.corruption.choose import uniform
from bert_jax.batches.random_keys import RATE_TAG, draw_rows, random_key

# Rates are uniform from here to 1.
LEAST_RATE = 1e-3


class Diffusion:
    """Masks each token of a row with the row's probability; every chosen token becomes [MASK].

    All tokens but [CLS] may be masked; in rows with answers, only those of the answer. No option of
    `config.data` is used.

    The rates of the rows of a batch are equally far apart: t_i = 1 - (u + i / B) mod 1, where i is
    the place of a row among B, and u is drawn for the batch. Packed sequences are numbered within
    their window, and u is drawn for each B successive ones.

    Attributes:
      fields: The arrays that `corrupt` adds to a batch.
      repeats: How often a row is in a batch, one after another.
    """

    fields: BatchFields = DIFFUSION_FIELDS
    repeats = 1

    def __init__(self, tokenizer, spec, store=None):
        self._cls_id, self._mask_id = tokenizer.cls_id, tokenizer.mask_id
        self._rows_per_draw = spec.batch_size

    @staticmethod
    def held_out(spec):
        """Returns the `StreamSpec` of held-out rows, each at several rates."""
        return dataclasses.replace(spec, corruption=HeldOutDiffusion)

    def corrupt(
        self, batch: dict[str, np.ndarray], key: np.ndarray, first_example: int
    ) -> dict[str, np.ndarray]:
        """Masks B consecutive examples.

        Args:
          batch: `input_ids` and `attention_mask` int32 [B, L], and perhaps `is_answer`. The arrays
            are not changed.
          key: uint64 [2], the key of the stream.
          first_example: The number of the first row in the stream.

        Returns:
          `input_ids` int32 [B, L] with masks, and `DIFFUSION_FIELDS`.
        """
        ids_BxL = batch["input_ids"]
        is_candidate_BxL = (batch["attention_mask"] != 0) & (ids_BxL != self._cls_id)
        if "is_answer" in batch:
            is_candidate_BxL = batch["is_answer"] != 0
        t_Bx1 = self.times(key, first_example, len(ids_BxL))[:, None]
        coins_BxL = uniform(draw_rows(key, first_example, *ids_BxL.shape))
        is_masked_BxL, rate_Bx1 = self.choose(is_candidate_BxL, coins_BxL, t_Bx1)
        return {
            "input_ids": np.where(is_masked_BxL, self._mask_id, ids_BxL),
            "original_ids": ids_BxL,
            "mask_weights": (is_candidate_BxL / rate_Bx1).astype(np.float32),
        }

    def times(self, key: np.ndarray, first_example: int, num_rows: int) -> np.ndarray:
        """Returns t of consecutive examples, float64 [B], uniform in (0, 1]."""
        number_B = first_example + np.arange(num_rows)
        draw_B, place_B = np.divmod(number_B, self._rows_per_draw)
        first, last = int(draw_B[0]), int(draw_B[-1])
        bits_N = draw_rows(random_key(*key.tolist(), RATE_TAG), first, last - first + 1, 1)[:, 0]
        return 1 - (uniform(bits_N)[draw_B - first] + place_B / self._rows_per_draw) % 1

    def choose(
        self, is_candidate_BxL: np.ndarray, coins_BxL: np.ndarray, t_Bx1: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns which tokens become masks, bool [B, L], and the rate of each row, [B, 1]."""
        rate_Bx1 = LEAST_RATE + (1 - LEAST_RATE) * t_Bx1
        return is_candidate_BxL & (coins_BxL < rate_Bx1), rate_Bx1


class HeldOutDiffusion(Diffusion):
    """The masks of held-out rows, each with `HELD_OUT_RATES` rates that are equally far apart.

    Of n tokens, ceil(t n) are masked. This fixed number gives the same bound with less noise
    (Nie et al. 2025, equation 6).
    """

    repeats = HELD_OUT_RATES

    def __init__(self, tokenizer, spec, store=None):
        super().__init__(tokenizer, spec, store)
        self._rows_per_draw = self.repeats

    def choose(
        self, is_candidate_BxL: np.ndarray, coins_BxL: np.ndarray, t_Bx1: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        total_Bx1 = np.maximum(is_candidate_BxL.sum(axis=1, keepdims=True), 1)
        number_Bx1 = np.ceil(t_Bx1 * total_Bx1)
        order_BxL = np.where(is_candidate_BxL, coins_BxL, 2).argsort(axis=1).argsort(axis=1)
        return is_candidate_BxL & (order_BxL < number_Bx1), number_Bx1 / total_Bx1
