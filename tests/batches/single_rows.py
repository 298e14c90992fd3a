"""Undoes packing: gives each sequence of a packed batch a row of its own."""

import numpy as np

from bert_jax.base.batch import SHARED_ROW_FIELDS, weights_name

# Fields whose values are positions in a row.
POSITIONS = ("masked_lm_positions", "span_left_positions", "span_right_positions")


def single_rows(batch):
    """Returns the batch of the same sequences, one per row, in the order of the rows."""
    labels = {name: weights_name(name) for name in batch if name.endswith("_labels")}
    positions_BxM = batch["masked_lm_positions"]
    rows = []
    for r, mask_L in enumerate(batch["attention_mask"]):
        for number in range(1, mask_L.max() + 1):
            (column_T,) = np.nonzero(mask_L == number)
            start, length = int(column_T[0]), len(column_T)
            # A sequence is in one piece, and its positions and its start are right.
            assert (column_T == start + np.arange(length)).all()
            assert (batch["position_ids"][r, column_T] == np.arange(length)).all()
            assert batch["cls_positions"][r, number - 1] == start
            is_inside_M = (positions_BxM[r] >= start) & (positions_BxM[r] < start + length)
            is_inside_M &= batch["masked_lm_weights"][r] > 0
            row = {name: batch[name][r, number - 1] for name in labels}
            assert all(batch[weights][r, number - 1] == 1 for weights in labels.values())
            for name in batch.keys() - labels.keys() - {*labels.values()} - {*SHARED_ROW_FIELDS}:
                values, row[name] = batch[name][r], np.zeros_like(batch[name][r])
                if len(values) == len(mask_L):
                    row[name][:length] = values[column_T]
                else:
                    shift = start * (name in POSITIONS)
                    row[name][: is_inside_M.sum()] = values[is_inside_M] - shift
            row["attention_mask"] = (np.arange(len(mask_L)) < length).astype(np.int32)
            rows.append(row)
        assert not any(batch[weights][r, mask_L.max() :].any() for weights in labels.values())
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
