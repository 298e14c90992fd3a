"""The keys of a stage of pre-training, and the number of predictions that follows from them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from scipy.special import bdtr

from bert_jax.config.common import ENDING_SHAPES, SHAPES
from bert_jax.config.schema import Field, Section, build

STAGE: Section = {
    "fraction": Field(1.0, "Fraction of train.num_steps.", at_least=0, at_most=1),
    "max_seq_length": Field(
        128, "Tokens in each sequence, including [CLS] and both [SEP].", at_least=5
    ),
    "max_predictions_per_seq": Field(
        0,
        "Largest number of masked positions in a sequence. 0 derives it: max_seq_length times "
        "the masking rate, rounded up to a multiple of 5 (20 for 128 tokens and 80 for 512, as "
        "in BERT), and as many as data.max_pairs_per_row needs. With xlm, modernbert, ettin, "
        "roberta's whole words and corruptions of your own, hardly a row has more predictions.",
        at_least=0,
    ),
    "batch_size": Field(
        0, "Rows in each step, over all devices. 0 means train.batch_size.", at_least=0
    ),
    "masked_lm_prob": Field(
        0.0,
        "Masking rate of the stage, as data.masked_lm_prob, which 0 means.",
        at_least=0,
        below=1,
    ),
    "weight_decay": Field(
        -1.0,
        "Weight decay of the stage, as optimizer.weight_decay, which -1 means.",
        at_least=0,
        also=-1,
    ),
    "peak_learning_rate": Field(
        0.0,
        "If above 0, the stage has its own schedule with this peak, which starts at the stage's "
        "first step; the optimizer keeps its moments. 0 means the schedule of the run or, if the "
        "stage has a shape, its peak.",
        at_least=0,
    ),
    "warmup_steps": Field(
        0.0, "Warm-up of the stage's own schedule, as in schedule.warmup_steps.", at_least=0
    ),
    "shape": Field(
        "",
        "Form of the stage's own schedule, as in schedule.shape. If empty, the stage has the form "
        "and the end of the run's schedule.",
        choices=("", *SHAPES),
    ),
    "end_factor": Field(
        0.0,
        "End of the stage's shape, as in schedule.end_factor.",
        only_with=("shape", *ENDING_SHAPES),
        at_least=0,
        at_most=1,
    ),
    "rope_theta": Field(
        0.0,
        "model.rope_theta during the stage, which 0 means. ModernBERT raises it for longer rows. "
        "A model is evaluated, loaded and exported with the value of its last step.",
        at_least=0,
    ),
    "local_rope_theta": Field(
        0.0, "model.local_rope_theta during the stage, which 0 means.", at_least=0
    ),
}

# The keys of a run that a stage may have of its own, and the key of a stage that says so.
OWN_KEYS = {
    "train.batch_size": "batch_size",
    "data.masked_lm_prob": "masked_lm_prob",
    "optimizer.weight_decay": "weight_decay",
    "schedule.peak_learning_rate": "peak_learning_rate",
    "schedule.shape": "shape",
    "schedule.end_factor": "shape",
    "model.rope_theta": "rope_theta",
    "model.local_rope_theta": "local_rope_theta",
}
# The corruptions that flip a coin for each token, so that the number of predictions varies. Those
# from outside the package ("MODULE:NAME") may do so too.
COIN_CORRUPTIONS = ("xlm", "modernbert", "ettin")
# The keys of a stage that replace keys of config.model of the same name.
OWN_MODEL_KEYS = ("rope_theta", "local_rope_theta")


def stage(**values: Any) -> ConfigDict:
    """Makes a stage for `train.stages`; `STAGE` defines the keys."""
    return build(STAGE, values, "train.stages[].")


def stages_of_tokens(entries: Iterable[Mapping[str, Any]]) -> tuple[int, tuple[ConfigDict, ...]]:
    """Makes stages from numbers of tokens instead of fractions.

    Args:
      entries: For each stage, its `tokens` and keys of `STAGE`, with `batch_size` and
        `max_seq_length`.

    Returns:
      The values of `train.num_steps` and `train.stages`.
    """
    entries = list(entries)
    steps = [
        max(1, round(entry["tokens"] / (entry["batch_size"] * entry["max_seq_length"])))
        for entry in entries
    ]
    total = sum(steps)
    stages = (
        stage(fraction=count / total, **{k: v for k, v in entry.items() if k != "tokens"})
        for count, entry in zip(steps, entries, strict=True)
    )
    return total, tuple(stages)


def batch_ramp(tokens: float, batch_sizes: Sequence[int], **values: Any) -> list[dict[str, Any]]:
    """Makes entries for `stages_of_tokens` with a rising batch size.

    Each size has the same number of steps, so that the batch rises by steps along a line, as in
    `BatchSizeWarmupScheduler` of ModernBERT's sequence_packer.py. Each size is compiled, and each
    entry reads the text in another order, as stages do.

    Args:
      batch_sizes: The batch sizes, which should have equal distances.
    """
    share = tokens / sum(batch_sizes)
    return [{"tokens": share * size, "batch_size": size, **values} for size in batch_sizes]


def has_own_schedule(stage: ConfigDict) -> bool:
    """Returns whether a stage does not follow the schedule of the run."""
    return bool(stage.peak_learning_rate or stage.shape)


def masking_rate(stage: ConfigDict, data: ConfigDict) -> float:
    """Returns the masking rate of a stage; `data` is `config.data`."""
    return stage.masked_lm_prob or data.masked_lm_prob


def max_predictions(stage: ConfigDict, data: ConfigDict) -> int:
    """Returns the largest number of predictions in a row of a stage; `data` is `config.data`."""
    return stage.max_predictions_per_seq or derived_predictions(
        stage.max_seq_length,
        masking_rate(stage, data),
        data.corruption,
        data.max_pairs_per_row,
        data.whole_word_masking,
    )


def derived_predictions(
    max_seq_length: int,
    masked_lm_prob: float,
    corruption: str,
    max_pairs_per_row: int = 1,
    whole_word_masking: bool = False,
) -> int:
    """Computes the number of predictions that a row of this length needs.

    If a coin decides for each token, fewer than one row in a million needs more. With whole words
    and corruption=roberta, the number of words is fixed and that of their tokens varies. There is
    room for coins that choose two tokens at once, which vary more than words do if the variance of
    the tokens of a word is less than twice their mean.
    """
    has_random_words = corruption == "roberta" and whole_word_masking
    if has_random_words or corruption in COIN_CORRUPTIONS or ":" in corruption:
        size = 2 if has_random_words else 1
        numbers = np.arange(max_seq_length // size + 1)
        below = bdtr(numbers, max_seq_length // size, masked_lm_prob)
        return size * int(np.searchsorted(below, 1 - 1e-6))
    needed = 5 * math.ceil(round(max_seq_length * masked_lm_prob / 5, 6))
    if max_pairs_per_row > 1:
        # The number of each pair is rounded, so that each may add a half.
        packed = math.floor(round(max_seq_length * masked_lm_prob + max_pairs_per_row / 2, 6))
        needed = max(needed, packed)
    # [CLS] and both [SEP] tokens are not predicted.
    return min(needed, max_seq_length - 3)
