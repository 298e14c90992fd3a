"""Reads spans of the token store and puts special tokens around them."""

from typing import NamedTuple

import numpy as np


class Span(NamedTuple):
    """One span of the token store for each of B rows."""

    start_B: np.ndarray  # int64
    length_B: np.ndarray  # any integer dtype


def join_spans(
    store, tokenizer, width: int, a: Span, b: Span | None = None
) -> dict[str, np.ndarray]:
    """Returns rows of `before A between B after`, the fields of the encoder.

    A row whose B is empty is `before A after`. Token types are 1 from B to the end, or all 0 if the
    tokenizer has one segment.

    Args:
      store: Has `tokens_at(positions)`.
      tokenizer: Its `template` defines the special tokens.
      width: L; the text and the special tokens of each row must fit.
      a, b: The spans; A is not empty.

    Returns:
      `ENCODER_FIELDS`, int32 [B, L].
    """
    template, num_rows = tokenizer.template, len(a.start_B)
    column_L = np.arange(width, dtype=np.int64)
    origin_BxL = np.zeros((num_rows, width), np.int64)
    is_text_BxL = np.zeros((num_rows, width), bool)
    ids_BxL = np.full((num_rows, width), tokenizer.pad_id, np.int32)
    place_B = np.zeros(num_rows, np.int64)

    def add_tokens(ids: tuple[int, ...], row: np.ndarray) -> None:
        for token_id in ids:
            ids_BxL[row, place_B[row]] = token_id
            place_B[row] += 1

    def add_text(span: Span) -> None:
        first_Bx1, end_Bx1 = place_B[:, None], (place_B + span.length_B)[:, None]
        inside_BxL = (column_L >= first_Bx1) & (column_L < end_Bx1)
        np.copyto(origin_BxL, span.start_B[:, None] - first_Bx1, where=inside_BxL)
        np.logical_or(is_text_BxL, inside_BxL, out=is_text_BxL)
        place_B[:] = end_Bx1[:, 0]

    every_row, b_first_B = np.arange(num_rows), np.full(num_rows, width)
    add_tokens(template.before, every_row)
    add_text(a)
    if b is not None:
        has_b = np.flatnonzero(b.length_B)
        add_tokens(template.between, has_b)
        b_first_B[has_b] = place_B[has_b]
        add_text(b)
    add_tokens(template.after, every_row)
    ids_BxL[is_text_BxL] = store.tokens_at((origin_BxL + column_L)[is_text_BxL])
    is_real_BxL = column_L < place_B[:, None]
    token_type_ids_BxL = np.zeros_like(ids_BxL)
    if b is not None and template.num_segments == 2:
        token_type_ids_BxL[:] = (column_L >= b_first_B[:, None]) & is_real_BxL
    return {
        "input_ids": ids_BxL,
        "token_type_ids": token_type_ids_BxL,
        "attention_mask": is_real_BxL.astype(np.int32),
    }
