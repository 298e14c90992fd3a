"""Declares the arrays of a batch: their names, shapes and dtypes.

Row builders, corruptions and objective terms each declare the fields that they produce or
need. Compiled shapes, the tf.data signature and synthetic benchmark batches are all derived from
these declarations. This module declares the fields of the built-in parts.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class BatchField(NamedTuple):
    """One array of a batch.

    Attributes:
      dimensions: One letter per axis: "B" rows, "L" positions (`max_seq_length`), "M" predictions
        (`max_predictions_per_seq`), "P" sequences of a row (`max_pairs_per_row`).
      dtype: "int32" or "float32".
      low: The smallest value.
      high: One above the largest value: a number, or "V" for the size of the vocabulary and
        "L" for the length of the row (the value is a position). Synthetic batches are drawn from
        this range.
    """

    dimensions: str
    dtype: str
    low: int = 0
    high: int | str = "V"

    def shape(
        self,
        batch_size: int,
        max_seq_length: int,
        max_predictions_per_seq: int,
        max_pairs_per_row: int = 1,
    ) -> tuple[int, ...]:
        """Returns the shape of the array for these sizes."""
        lengths = batch_size, max_seq_length, max_predictions_per_seq, max_pairs_per_row
        sizes = dict(zip("BLMP", lengths, strict=True))
        return tuple(sizes[letter] for letter in self.dimensions)

    def limit(self, vocab_size: int, max_seq_length: int) -> int:
        """Returns one above the largest value for these sizes."""
        return {"V": vocab_size, "L": max_seq_length}.get(self.high, self.high)


BatchFields = Mapping[str, BatchField]
# The rows of a batch on a host, by the names of their fields. On the devices it is a `Batch`
# (`objectives.objective`).
HostBatch = dict[str, np.ndarray]

# The inputs of the encoder; every row builder produces them.
ENCODER_FIELDS: BatchFields = {
    "input_ids": BatchField("BL", "int32"),
    "token_type_ids": BatchField("BL", "int32", high=2),
    "attention_mask": BatchField("BL", "int32", low=1, high=2),
}
MASKED_LM_FIELDS: BatchFields = {
    "masked_lm_positions": BatchField("BM", "int32", high="L"),
    "masked_lm_ids": BatchField("BM", "int32"),
    "masked_lm_weights": BatchField("BM", "float32", low=1, high=2),
}
# Only this many first tokens of a span have boundary targets (--max-pair-targets in SpanBERT's
# pre-training command).
MAX_SPAN_TARGETS = 15
# For each prediction: the tokens beside its span, and its distance from the span's first token.
SPAN_BOUNDARY_FIELDS: BatchFields = {
    "span_left_positions": BatchField("BM", "int32", high="L"),
    "span_right_positions": BatchField("BM", "int32", high="L"),
    "span_offsets": BatchField("BM", "int32", high=MAX_SPAN_TARGETS),
    "span_weights": BatchField("BM", "float32", low=1, high=2),
}
# The target of an encoder and decoder: what the decoder reads, and the next token at each position.
DENOISING_FIELDS: BatchFields = {
    "decoder_input_ids": BatchField("BL", "int32"),
    "decoder_attention_mask": BatchField("BL", "int32", low=1, high=2),
    "labels": BatchField("BL", "int32"),
}
# Masked diffusion. `mask_weights` is 1 / rate where a token may be masked, with the rate of its
# row, and 0 elsewhere. `input_ids` differ from `original_ids` where a token was masked.
DIFFUSION_FIELDS: BatchFields = {
    "original_ids": BatchField("BL", "int32"),
    "mask_weights": BatchField("BL", "float32", low=1, high=2),
}
# The copies of each held-out row of masked diffusion. They follow each other in a batch; their
# rates are equally far apart.
HELD_OUT_RATES = 8
# Whether a token belongs to the answer to a prompt. Only answers are masked.
ANSWER_FIELDS: BatchFields = {"is_answer": BatchField("BL", "int32", high=2)}
# 0: B follows A. 1: B is random.
NEXT_SENTENCE_FIELDS: BatchFields = {"next_sentence_labels": BatchField("B", "int32", high=2)}
# 0: B follows A. 1: A follows B. 2: B is random (only in THREE_WAY_FIELDS).
SENTENCE_ORDER_FIELDS: BatchFields = {"sentence_order_labels": BatchField("B", "int32", high=2)}
THREE_WAY_FIELDS: BatchFields = {"sentence_order_labels": BatchField("B", "int32", high=3)}
# Fields of rows that several sequences share. `attention_mask` has the number of the sequence, from
# 1, at each of its tokens, and 0 at padding. (Rows of synthetic batches have one sequence.)
SHARED_ROW_FIELDS: BatchFields = {
    # From 0 in each sequence.
    "position_ids": BatchField("BL", "int32", high="L"),
    # The first position of each sequence; 0 if there are fewer than P.
    "cls_positions": BatchField("BP", "int32", high="L"),
}


def shared_row_fields(fields: BatchFields) -> BatchFields:
    """Returns the fields of rows that several sequences share, from the fields of single ones.

    A field with one value per sequence ("B") becomes one with a value for each of the P sequences
    of a row ("BP"). It gets a field of weights, which are 0 where a row has fewer than P.
    """
    shared: dict[str, BatchField] = {}
    for name, field in fields.items():
        if field.dimensions == "B":
            shared[name] = field._replace(dimensions="BP")
            shared[weights_name(name)] = BatchField("BP", "float32", low=1, high=2)
        else:
            shared[name] = field
    return shared | SHARED_ROW_FIELDS


def weights_name(labels: str) -> str:
    """Returns the name of the weights of labels: "next_sentence_weights"."""
    return f"{labels.removesuffix('_labels')}_weights"


def host_rows(batch_size: int, shards: Sequence[int], num_shards: int) -> np.ndarray:
    """Returns the row numbers of some shards of a global batch, int64 [R].

    Args:
      batch_size: The number of rows of a global batch, a multiple of `num_shards`.
      shards: The numbers of the shards in ascending order; they need not be adjacent.
    """
    size = batch_size // num_shards
    return np.concatenate([np.arange(s * size, (s + 1) * size) for s in shards])
