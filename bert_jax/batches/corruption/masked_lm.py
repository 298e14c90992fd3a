"""Masking: some tokens of a row are chosen for prediction, then hidden or replaced.

The rules are data, `MaskingRules`, whose defaults are BERT's. Those of other models are at the end,
and those that choose runs of words in `spans`.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from bert_jax.base.batch import (
    MASKED_LM_FIELDS,
    MAX_SPAN_TARGETS,
    SPAN_BOUNDARY_FIELDS,
    BatchFields,
)
from bert_jax.batches.corruption.choose import (
    choose_groups,
    num_to_predict,
    uniform,
    weighted_order,
    word_starts,
)
from bert_jax.batches.random_keys import draw_rows
from bert_jax.config import derived_predictions


@dataclasses.dataclass(frozen=True)
class MaskingRules:
    """Which tokens are chosen, and what replaces them. Calling an instance makes the corruption.

    The defaults are the rules of `create_masked_lm_predictions` in google-research/bert's
    create_pretraining_data.py. A *group* is what is chosen together: a whole word if
    `config.data.whole_word_masking` or `whole_words` is set, otherwise a single token.

    Attributes:
      whole_words: Whether groups are words even if `config.data.whole_word_masking` is False.
      specials: Whether [CLS] and [SEP] may be chosen; each is a group of its own.
      rate_of: What `config.data.masked_lm_prob` is a fraction of: "tokens" (with [CLS] and [SEP]),
        "text" (the tokens that may be chosen), or "groups".
      rounding: How the number to choose is rounded: "nearest" (halves to even, at least 1),
        "up", or "random" (up with a probability equal to the fraction, else down). With "coins",
        each group is chosen or not by a coin of its own; `rate_of` must then be "groups".
      count_power: A token's weight in the choice is its count in the corpus raised to this
        power. 0 gives all tokens the same weight; any other value excludes [UNK] and must not be
        combined with whole words.
      choose: Chooses the tokens; called like `choose_groups`.
      choice_draws: The number of random numbers that `choose` takes for each position.
      fractions: The fractions of the chosen tokens that become [MASK], are kept, and become random;
        None for `config.data.mask_fractions`.
      coin: The unit that is masked, kept or replaced as a whole: "token", "group", or "span" (a
        run of chosen tokens).
      random_ids: The distribution of random tokens: "all" (uniform over all ids), "no_specials"
        (the same without padding, unknown, [CLS] and [SEP]), or "text" (proportional to the
        counts in the corpus). Each token is drawn independently.
      boundaries: Whether the batch gets the fields of `SPAN_BOUNDARY_FIELDS`.
      held_out_as_trained: Whether held-out rows have these rules. Otherwise they have BERT's, so
        that models are compared on the same predictions, whatever they were trained with.
    """

    whole_words: bool = False
    specials: bool = False
    rate_of: str = "tokens"
    rounding: str = "nearest"
    count_power: float = 0.0
    choose: Callable[..., np.ndarray] = choose_groups
    choice_draws: int = 1
    fractions: tuple[float, float, float] | None = None
    coin: str = "token"
    random_ids: str = "all"
    boundaries: bool = False
    held_out_as_trained: bool = False

    @property
    def fields(self) -> BatchFields:
        return {**MASKED_LM_FIELDS, **(SPAN_BOUNDARY_FIELDS if self.boundaries else {})}

    def __call__(self, tokenizer, spec, store) -> "MaskedTokens":
        return MaskedTokens(tokenizer, spec, store, self)

    def held_out(self, spec):
        """Returns the `StreamSpec` of held-out rows, with as many predictions as they need."""
        if self.held_out_as_trained:
            return spec
        rate = 0.15
        return dataclasses.replace(
            spec,
            # The fields stay those that the terms need.
            corruption=dataclasses.replace(BERT, boundaries=self.boundaries),
            max_predictions_per_seq=derived_predictions(spec.max_seq_length, rate, "masked_lm"),
            masked_lm_prob=rate,
            mask_fractions=(0.8, 0.1, 0.1),
            whole_word_masking=False,
        )


class MaskedTokens:
    """Chooses tokens or whole words for prediction, and masks them.

    Args:
      tokenizer: Has `vocab_size`, the ids of the special tokens and `begins_word`; see `Tokenizer`.
        [UNK] may be predicted.
      spec: A `StreamSpec`: `max_predictions_per_seq`, `masked_lm_prob`, `whole_word_masking` and
        `mask_fractions` are used. Rows never have more than `max_predictions_per_seq` predictions.
      store: Has `token_counts`; used only by rules that depend on the corpus.
      rules: See `MaskingRules`.

    Attributes:
      fields: The arrays that `corrupt` adds to a batch.
    """

    def __init__(self, tokenizer, spec, store=None, rules: MaskingRules = MaskingRules()):
        self._rules, self.fields = rules, rules.fields
        self._max_predictions = spec.max_predictions_per_seq
        self._masked_lm_prob = spec.masked_lm_prob
        self._whole_words = spec.whole_word_masking or rules.whole_words
        self._fractions = rules.fractions or spec.mask_fractions
        self._mask_id = tokenizer.mask_id
        self._begins_word = tokenizer.begins_word
        ends = [tokenizer.cls_id, tokenizer.sep_id]
        self._is_text_V = np.ones(tokenizer.vocab_size, dtype=bool)
        self._is_text_V[[tokenizer.pad_id, *ends, tokenizer.mask_id]] = False
        self._is_candidate_V = self._is_text_V.copy()
        self._is_candidate_V[ends] = rules.specials
        if rules.count_power:
            self._is_candidate_V[tokenizer.unk_id] = False
            self._weight_V = np.maximum(store.token_counts, 1.0) ** rules.count_power
        self._random_ids = np.arange(tokenizer.vocab_size, dtype=np.int32)
        if rules.random_ids == "no_specials":
            specials = [tokenizer.pad_id, tokenizer.unk_id, *ends]
            self._random_ids = np.delete(self._random_ids, specials)
        if rules.random_ids == "text":
            self._ends_V = np.cumsum(store.token_counts)

    def corrupt(
        self, batch: dict[str, np.ndarray], key: np.ndarray, first_example: int
    ) -> dict[str, np.ndarray]:
        """Masks B consecutive examples.

        Args:
          batch: `input_ids` int32 [B, L], `attention_mask` (1 on real tokens), and bool
            `begins_word` if the store has word starts. The arrays are not changed.
          key: uint64 [2], the key of the stream.
          first_example: The number of the first row in the stream.

        Returns:
          `input_ids` int32 [B, L] with replacements, `masked_lm_positions` (ascending) and
          `masked_lm_ids` (the true ids) int32 [B, M], and `masked_lm_weights` float32 [B, M].
          Where a row has fewer than M predictions, the last three are 0. If the rules have
          `boundaries`, also `span_left_positions`, `span_right_positions`, `span_offsets` int32
          and `span_weights` float32, all [B, M] and 0 where a prediction has no boundary.
        """
        ids_BxL, mask_BxL = batch["input_ids"], batch["attention_mask"]
        num_rows, length = ids_BxL.shape
        slots, rules = self._max_predictions, self._rules
        draws = length * rules.choice_draws
        num_columns = draws + 2 * slots + (rules.rounding == "random")
        bits_BxC = draw_rows(key, first_example, num_rows, num_columns)
        choice_bits_BxC, number_bits_B = bits_BxC[:, :draws], bits_BxC[:, -1]

        is_text_BxL = self._is_text_V[ids_BxL] & (mask_BxL != 0)
        is_candidate_BxL = self._is_candidate_V[ids_BxL] & (mask_BxL != 0)
        is_start_BxL = is_candidate_BxL
        if self._whole_words:
            begins_word_BxL = batch.get("begins_word")
            if begins_word_BxL is None:
                begins_word_BxL = self._begins_word(ids_BxL)
            is_start_BxL = word_starts(is_text_BxL, begins_word_BxL) | (
                is_candidate_BxL & ~is_text_BxL
            )
        if rules.count_power:
            choice_bits_BxC = weighted_order(choice_bits_BxC, self._weight_V[ids_BxL])
        counted_BxL = {"tokens": mask_BxL, "text": is_text_BxL, "groups": is_start_BxL}
        if rules.rounding == "coins":
            # Groups are chosen in the order of their bits.
            is_chosen_BxL = is_start_BxL & (uniform(choice_bits_BxC) < self._masked_lm_prob)
            number_B = is_chosen_BxL.sum(axis=1)
        else:
            number_B = num_to_predict(
                counted_BxL[rules.rate_of].sum(axis=1),
                self._masked_lm_prob,
                slots,
                rules.rounding,
                uniform(number_bits_B),
            )
        quota_B, limit = number_B, {}
        if rules.rate_of == "groups":
            quota_B, limit = np.full(num_rows, slots), {"max_groups_B": number_B}
        chosen_BxL = rules.choose(is_candidate_BxL, is_start_BxL, quota_B, choice_bits_BxC, **limit)

        row_T, column_T = np.nonzero(chosen_BxL)  # Row by row, columns ascending.
        chosen_B = chosen_BxL.sum(axis=1)
        slot_T = np.arange(row_T.size) - np.repeat(np.cumsum(chosen_B) - chosen_B, chosen_B)
        true_id_T = ids_BxL[row_T, column_T]
        flips_T = np.ones(row_T.size, bool)  # Whether a coin is flipped at this token.
        if rules.coin == "group":
            flips_T = is_start_BxL[row_T, column_T]
        elif rules.coin == "span":
            flips_T[1:] = np.diff(row_T * (length + 1) + column_T) != 1
        coin_slot_T = slot_T[np.maximum.accumulate(np.where(flips_T, np.arange(row_T.size), 0))]
        masked_ids_BxL = ids_BxL.copy()
        masked_ids_BxL[row_T, column_T] = self._replaced(
            true_id_T,
            uniform(bits_BxC[row_T, draws + coin_slot_T]),
            uniform(bits_BxC[row_T, draws + slots + slot_T]),
        )

        columns = {
            "masked_lm_positions": column_T,
            "masked_lm_ids": true_id_T,
            "masked_lm_weights": np.ones(row_T.size),
        }
        if rules.boundaries:
            boundaries = span_boundaries(row_T, column_T, is_text_BxL)
            columns |= zip(SPAN_BOUNDARY_FIELDS, boundaries, strict=True)
        corrupted = {"input_ids": masked_ids_BxL}
        for name, values_T in columns.items():
            corrupted[name] = np.zeros((num_rows, slots), self.fields[name].dtype)
            corrupted[name][row_T, slot_T] = values_T
        return corrupted

    def _replaced(self, true_id_T: np.ndarray, action_T: np.ndarray, which_T: np.ndarray):
        """Returns the new ids of the chosen tokens [T]; `action_T`, `which_T` are in [0, 1)."""
        masked, unchanged, _ = self._fractions
        if self._rules.random_ids == "text":
            total = self._ends_V[-1]
            random_id_T = np.searchsorted(self._ends_V, which_T * total, side="right")
        else:
            random_id_T = self._random_ids[(which_T * len(self._random_ids)).astype(np.int32)]
        return np.where(
            action_T < masked,
            self._mask_id,
            np.where(action_T < masked + unchanged, true_id_T, random_id_T),
        )


def span_boundaries(
    row_T: np.ndarray, column_T: np.ndarray, is_text_BxL: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the span boundaries of chosen tokens; a span is a run of adjacent tokens.

    A span that touches a special token has no boundary (`span_masking` in SpanBERT's masking.py).
    Tokens after the first MAX_SPAN_TARGETS of a span have none either.

    Args:
      row_T, column_T: The chosen tokens, row by row, columns ascending.
      is_text_BxL: bool, the tokens that are not special.

    Returns:
      Four arrays [T]: the columns before and after the token's span, and its position in it,
      all 0 if the token has no boundary; and whether it has one.
    """
    is_last_T = np.ones(row_T.size, bool)
    is_last_T[:-1] = np.diff(row_T * (is_text_BxL.shape[1] + 1) + column_T) != 1
    last_S = np.flatnonzero(is_last_T)
    first_S = np.append(0, last_S + 1)[:-1]
    size_S = last_S + 1 - first_S
    first_T, last_T = np.repeat(column_T[first_S], size_S), np.repeat(column_T[last_S], size_S)
    # The padding is not text; column -1 wraps around to it.
    is_text_BxL1 = np.pad(is_text_BxL, ((0, 0), (0, 1)))
    has_T = is_text_BxL1[row_T, first_T - 1] & is_text_BxL1[row_T, last_T + 1]
    has_T &= column_T - first_T < MAX_SPAN_TARGETS
    return (first_T - 1) * has_T, (last_T + 1) * has_T, (column_T - first_T) * has_T, has_T


BERT = MaskingRules()

# fairseq's MaskTokensDataset. Any position may be chosen, and random tokens are never special.
# With whole words, a fraction of the words is chosen; each is masked, kept or replaced as a whole.
ROBERTA = MaskingRules(
    specials=True, rate_of="groups", rounding="random", coin="group", random_ids="no_specials"
)

# `mask_out` in XLM's trainer.py. (It never chooses the first token of a row.)
XLM = MaskingRules(specials=True, rate_of="groups", rounding="coins")

# ModernBERT's sequence_packer.py chooses any token, with a coin for each; Ettin never specials.
# (Their random ids end with the largest id of the batch; here they are uniform over all ids.)
MODERNBERT = XLM
ETTIN = MaskingRules(rate_of="groups", rounding="coins")

# `Distiller.prepare_batch_mlm` of transformers' distillation project: rare tokens are chosen more
# often. It draws over a whole batch; here each row has its own number.
DISTILBERT = MaskingRules(rounding="random", count_power=-0.7)

# `mask` in google-research/electra's pretrain_helpers.py: no chosen token becomes a random token.
# (The original draws positions with replacement, so some count twice.)
ELECTRA = MaskingRules(fractions=(0.85, 0.15, 0.0))


class NoCorruption:
    """Changes nothing, for objectives such as next-token prediction."""

    fields: ClassVar[BatchFields] = {}

    def __init__(self, tokenizer, spec, store):
        pass

    def corrupt(
        self, batch: dict[str, np.ndarray], key: np.ndarray, first_example: int
    ) -> dict[str, np.ndarray]:
        """Returns no arrays."""
        return {}
