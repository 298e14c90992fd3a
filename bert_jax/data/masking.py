"""Which tokens are predicted, and what stands in their place.

The rules are those of `create_masked_lm_predictions` in google-research/bert's
create_pretraining_data.py: about 15 % of a sequence's tokens, [CLS] and [SEP]
counted but never chosen, taken in random order; a whole word that no longer fits is
passed over. Of the chosen tokens, each by itself, 80 % become [MASK], 10 % a random
entry of the vocabulary (which may be any, specials included) and 10 % stay.

Randomness is stateless: example number i owns a fixed stretch of one Philox stream,
so that its masks do not depend on which rows are drawn with it, where or when.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class MaskingRules:
    """What determines the masks of given rows and given random numbers.

    `is_candidate_V` (bool by id) tells which tokens may be predicted;
    `is_word_start_V` is None where each token is chosen for itself, else it tells
    which ids begin a word, and whole words are chosen.
    """

    max_predictions: int
    masked_lm_prob: float
    vocab_size: int
    mask_id: int
    is_candidate_V: np.ndarray
    is_word_start_V: np.ndarray | None


def make_rules(
    tokenizer, *, max_predictions: int, masked_lm_prob: float, whole_word_masking: bool
) -> MaskingRules:
    """The rules for a tokenizer with `vocab_size`, the ids of `[PAD] [CLS] [SEP] [MASK]`
    (`pad_id` and so on) and `is_word_start_V` (bool by id). [UNK] may be predicted."""
    is_candidate_V = np.ones(tokenizer.vocab_size, dtype=bool)
    specials = [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    is_candidate_V[specials] = False
    return MaskingRules(
        max_predictions=max_predictions,
        masked_lm_prob=masked_lm_prob,
        vocab_size=tokenizer.vocab_size,
        mask_id=tokenizer.mask_id,
        is_candidate_V=is_candidate_V,
        is_word_start_V=(
            np.asarray(tokenizer.is_word_start_V, dtype=bool) if whole_word_masking else None
        ),
    )


def draw_rows(
    key: np.ndarray, first_example: int, num_examples: int, num_columns: int
) -> np.ndarray:
    """Random bits of consecutive examples, each example's always the same.

    Args:
      key: uint64 [2], the Philox key of the stream.
      first_example: number of the first example, any size.
      num_examples: B.
      num_columns: C; part of the layout, so constant for a stream.

    Returns:
      uint64 [B, C], uniform over 64 bits.
    """
    # Philox makes 4 numbers at a time and advances in those fours.
    fours = -(-num_columns // 4)
    philox = np.random.Philox(key=key)
    philox.advance(int(first_example) * fours)
    bits = np.random.Generator(philox).integers(
        0, 2**64, size=num_examples * fours * 4, dtype=np.uint64
    )
    return bits.reshape(num_examples, fours * 4)[:, :num_columns]


def num_to_predict(length_B: np.ndarray, masked_lm_prob: float, max_predictions: int):
    """Predictions of sequences of `length_B` tokens, specials counted; int64 [B].

    Halves round to even, as Python's `round` does in the original.
    """
    wanted_B = np.rint(length_B * masked_lm_prob).astype(np.int64)
    return np.minimum(max_predictions, np.maximum(1, wanted_B))


def choose_tokens(
    is_candidate_BxL: np.ndarray,
    is_start_BxL: np.ndarray,
    quota_B: np.ndarray,
    bits_BxL: np.ndarray,
) -> np.ndarray:
    """Takes groups of tokens in random order, as long as each still fits the quota.

    Args:
      is_candidate_BxL: bool, tokens that may be chosen.
      is_start_BxL: bool, candidates that begin a group; a group ends before the next
        start or the next token that is no candidate.
      quota_B: int64, the most tokens a row may have chosen.
      bits_BxL: uint64, random; a group's place in the order is its first token's.

    Returns:
      bool [B, L]: the tokens chosen. All rows go through the order in step, each group
      size 1 or more, so this is also the code for single tokens.
    """
    num_rows, length = is_start_BxL.shape
    # A key that carries its own column: sorting it is cheaper than an argsort, and
    # no two are equal. Columns where no group starts have the top bit: they sort last.
    column_bits = np.uint64(max(1, (length - 1).bit_length()))
    column_mask = (np.uint64(1) << column_bits) - np.uint64(1)
    key_BxL = (bits_BxL >> np.uint64(1) & ~column_mask) | np.arange(length, dtype=np.uint64)
    key_BxL |= (~is_start_BxL).astype(np.uint64) << np.uint64(63)
    key_BxL.sort(axis=1)
    num_groups_B = is_start_BxL.sum(axis=1)
    most_groups = int(num_groups_B.max(initial=0))
    # Turned: the loop below reads one line of each at a time.
    column_GxB = (key_BxL[:, :most_groups].T & column_mask).astype(np.int64)

    # A group's size is the distance to the next start or non-candidate.
    edge_flat = np.flatnonzero(is_start_BxL | ~is_candidate_BxL)
    size_flat = np.zeros(num_rows * length, dtype=np.int64)
    row_end = (edge_flat // length + 1) * length
    size_flat[edge_flat] = np.minimum(np.append(edge_flat[1:], num_rows * length), row_end)
    size_flat[edge_flat] -= edge_flat
    row_origin_B = np.arange(num_rows) * length
    size_GxB = size_flat[column_GxB + row_origin_B]
    # Past a row's last group: larger than any quota, so never taken.
    size_GxB[np.arange(most_groups)[:, None] >= num_groups_B] = length + 1

    left_B = quota_B.copy()
    taken_GxB = np.zeros(size_GxB.shape, dtype=bool)
    for group, size_B in enumerate(size_GxB):
        fits_B = np.less_equal(size_B, left_B, out=taken_GxB[group])
        left_B -= size_B * fits_B
        if not left_B.any():
            break

    # From groups to their tokens: every token looks up its group's first column.
    start_taken = np.zeros(num_rows * length, dtype=bool)
    start_taken[(column_GxB + row_origin_B)[taken_GxB]] = True
    start_taken_BxL = start_taken.reshape(num_rows, length)
    if is_start_BxL.sum() == is_candidate_BxL.sum():  # every group is one token
        return start_taken_BxL
    latest_BxL = np.maximum.accumulate(np.where(is_start_BxL, np.arange(length), 0), axis=1)
    return np.take_along_axis(start_taken_BxL, latest_BxL, axis=1) & is_candidate_BxL


def mask_rows(
    input_ids_BxL: np.ndarray,
    attention_mask_BxL: np.ndarray,
    rules: MaskingRules,
    key: np.ndarray,
    first_example: int,
) -> dict[str, np.ndarray]:
    """Masks B consecutive examples.

    Args:
      input_ids_BxL: int32, unmasked, with [CLS] and [SEP]; not changed.
      attention_mask_BxL: int32, 1 on real tokens.
      rules: see MaskingRules.
      key: uint64 [2], the stream's key.
      first_example: number of the first row in the stream; the others follow.

    Returns:
      `input_ids` int32 [B, L] with replacements, `masked_lm_positions` (ascending) and
      `masked_lm_ids` (the true ids) int32 [B, M], `masked_lm_weights` float32 [B, M];
      where a row has fewer than M predictions, all three are 0.
    """
    num_rows, length = input_ids_BxL.shape
    slots = rules.max_predictions
    bits_BxC = draw_rows(key, first_example, num_rows, length + 2 * slots)

    is_candidate_BxL = rules.is_candidate_V[input_ids_BxL] & (attention_mask_BxL != 0)
    if rules.is_word_start_V is None:
        is_start_BxL = is_candidate_BxL
    else:
        # The first token of a segment starts a group whatever it is: truncation may
        # have cut its word, and no group reaches over a [SEP]. (In the original such
        # pieces at B's beginning belong to A's last word.)
        follows_BxL = np.zeros_like(is_candidate_BxL)
        follows_BxL[:, 1:] = is_candidate_BxL[:, :-1]
        is_start_BxL = is_candidate_BxL & (rules.is_word_start_V[input_ids_BxL] | ~follows_BxL)
    quota_B = num_to_predict(attention_mask_BxL.sum(axis=1), rules.masked_lm_prob, slots)
    chosen_BxL = choose_tokens(is_candidate_BxL, is_start_BxL, quota_B, bits_BxC[:, :length])

    row_T, column_T = np.nonzero(chosen_BxL)  # row by row, columns ascending
    chosen_B = chosen_BxL.sum(axis=1)
    slot_T = np.arange(row_T.size) - np.repeat(np.cumsum(chosen_B) - chosen_B, chosen_B)
    true_id_T = input_ids_BxL[row_T, column_T]

    # Uniform in [0, 1), 53 bits, two a slot: what happens, and which id.
    action_T, which_T = (
        (bits_BxC[row_T, offset + slot_T] >> np.uint64(11)) * 2.0**-53
        for offset in (length, length + slots)
    )
    random_id_T = (which_T * rules.vocab_size).astype(np.int32)
    new_id_T = np.where(
        action_T < 0.8, rules.mask_id, np.where(action_T < 0.9, true_id_T, random_id_T)
    )
    masked_ids_BxL = input_ids_BxL.copy()
    masked_ids_BxL[row_T, column_T] = new_id_T

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
