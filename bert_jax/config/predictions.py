"""The number of predictions in a row, which follows from its length and its masking rate."""

import math
from collections.abc import Iterator

from ml_collections import ConfigDict


def packed_predictions(max_seq_length: int, masked_lm_prob: float, max_pairs_per_row: int) -> int:
    """Computes the number of predictions that a packed row needs; 0 for rows of one pair.

    The number of each pair is rounded, so that each may add a half.
    """
    if max_pairs_per_row == 1:
        return 0
    needed = math.floor(round(max_seq_length * masked_lm_prob + max_pairs_per_row / 2, 6))
    return min(needed, max_seq_length - 3)


def max_predictions(stage: ConfigDict, masked_lm_prob: float, max_pairs_per_row: int = 1) -> int:
    """Returns the largest number of predictions in a row of a stage.

    Args:
      masked_lm_prob: The masking rate of the run; the stage may have its own.
    """
    rate = stage.masked_lm_prob or masked_lm_prob
    return stage.max_predictions_per_seq or max(
        derived_predictions(stage.max_seq_length, rate),
        packed_predictions(stage.max_seq_length, rate, max_pairs_per_row),
    )


def derived_predictions(max_seq_length: int, masked_lm_prob: float) -> int:
    """Computes the number of predictions that a sequence of this length needs."""
    fives = math.ceil(round(max_seq_length * masked_lm_prob / 5, 6))
    # [CLS] and both [SEP] tokens are not predicted.
    return min(5 * fives, max_seq_length - 3)


def rated_stages(config: ConfigDict) -> Iterator[tuple[int, ConfigDict, float, str]]:
    """Yields the stages with steps.

    Each comes with its place in `train.stages`, its masking rate and the key that sets the rate.
    """
    for i, stage in enumerate(config.train.stages):
        if not stage.fraction:
            continue
        if stage.masked_lm_prob:
            yield i, stage, stage.masked_lm_prob, f"config.train.stages[{i}].masked_lm_prob"
        else:
            yield i, stage, config.data.masked_lm_prob, "config.data.masked_lm_prob"


def prediction_warnings(config: ConfigDict) -> list[str]:
    """Warns of each stage that predicts fewer tokens than its masking rate."""
    if config.data.corruption in ("none", "denoising"):
        return []
    warnings = []
    for i, stage, rate, key in rated_stages(config):
        limit, length = max_predictions(stage, rate), stage.max_seq_length
        if limit < 0.9 * rate * length:
            warnings.append(
                f"config.train.stages[{i}].max_predictions_per_seq is {limit}, so only "
                f"{limit / length:.1%} of the tokens in full rows of {length} are predicted, not "
                f"{key}={rate:g}; 0 derives the number from the length"
            )
    return warnings
