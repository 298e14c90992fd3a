"""Puts special tokens around spans of the token store."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Span(NamedTuple):
    """One span of the token store for each of B rows."""

    start_B: np.ndarray  # int64
    length_B: np.ndarray  # any integer dtype


def assemble_spans(
    store, special_ids: Sequence[Sequence[int]], spans: Sequence[Span], width: int, pad_id: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Reads spans of tokens and joins the spans of each row with special tokens.

    Args:
      store: Has `tokens_at(positions)`.
      special_ids: The special tokens before each span, and after the last.
      spans: At least one; the spans and special tokens of each row must fit in the width.
      width: L.
      pad_id: The id that fills up each row.

    Returns:
      The ids, int32 [B, L]; and for each entry of `special_ids`, the column after it in each
      row, int64 [B].
    """
    num_rows = len(spans[0].start_B)
    column_L = np.arange(width, dtype=np.int64)
    origin_BxL = np.zeros((num_rows, width), np.int64)
    is_text_BxL = np.zeros((num_rows, width), bool)
    ids_BxL = np.full((num_rows, width), pad_id, np.int32)
    row_B, place_B = np.arange(num_rows), np.zeros(num_rows, np.int64)
    ends: list[np.ndarray] = []
    for index, ids in enumerate(special_ids):
        for token_id in ids:
            ids_BxL[row_B, place_B] = token_id
            place_B = place_B + 1
        ends.append(place_B)
        if index < len(spans):
            span, first_Bx1 = spans[index], place_B[:, None]
            place_B = place_B + span.length_B
            inside_BxL = (column_L >= first_Bx1) & (column_L < place_B[:, None])
            np.copyto(origin_BxL, span.start_B[:, None] - first_Bx1, where=inside_BxL)
            is_text_BxL |= inside_BxL
    ids_BxL[is_text_BxL] = store.tokens_at((origin_BxL + column_L)[is_text_BxL])
    return ids_BxL, ends
