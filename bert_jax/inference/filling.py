"""Guesses what stands at each [MASK] of a text."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.inference import forward
from bert_jax.inference.forward import Inputs
from bert_jax.objectives.terms import make_terms
from bert_jax.tokenizers import MASK, Tokenizer, TokenRow
from bert_jax.tokenizers.given_texts import Text, as_texts, one_or_all

if TYPE_CHECKING:
    from bert_jax.inference.bert import Bert

# The number of rows whose masks are filled together. Each mask needs an array of the vocabulary's
# size.
_CHUNK_ROWS = 64


class Guess(NamedTuple):
    """A token for a masked position, and its probability."""

    token: str
    probability: float


def fill_mask(
    bert: "Bert",
    text: str | Sequence[Text],
    text_b: str | Sequence[str] | None = None,
    *,
    top_k: int = 5,
) -> list[list[Guess]] | list[list[list[Guess]]]:
    """Predicts the tokens at each [MASK], all masks at once.

    Args:
      text: A text with at least one [MASK] (see `Tokenizer.encode_masked`), or a list of texts
        or pairs.
      text_b: A second sentence, if any; for a list of texts a list.
      top_k: The number of guesses for each mask.

    Returns:
      The guesses for each mask in order, the most likely first; for a list of texts a list of
      such results.
    """
    texts = as_texts(text, text_b)
    rows = bert.rows(texts, masks=True)
    found = []
    for text_or_pair, guesses in zip(texts, guess_masks(bert, rows, top_k), strict=True):
        num_masks = count_masks(bert.tokenizer, text_or_pair)
        if not num_masks:
            shown = text_or_pair if isinstance(text_or_pair, str) else text_or_pair[0]
            raise UserError(f"{shown[:40]!r} has no {MASK}; write it instead of a word")
        if len(guesses) < num_masks:
            raise UserError(
                f"the text is longer than {bert.max_length} tokens, and "
                f"{num_masks - len(guesses)} {MASK} in it would be cut off; shorten it"
            )
        found.append(list(guesses.values()))
    return one_or_all(text, found)


def guess_masks(bert: "Bert", rows: Sequence[TokenRow], top_k: int) -> list[dict[int, list[Guess]]]:
    """Guesses the token at each mask of each row, by its position."""
    tokenizer = bert.tokenizer

    def best(log_probs_W: np.ndarray) -> list[Guess]:
        log_probs_V = log_probs_W[: bert.config.vocab_size]
        ranked = np.argsort(-log_probs_V, kind="stable")[:top_k]
        return [Guess(tokenizer.piece_text(i), math.exp(log_probs_V[i])) for i in ranked]

    guesses = []
    for first in range(0, len(rows), _CHUNK_ROWS):
        chunk = rows[first : first + _CHUNK_ROWS]
        positions = [np.flatnonzero(row.input_ids_L == tokenizer.mask_id).tolist() for row in chunk]
        num_masks = max(map(len, positions))
        if not num_masks:
            guesses += [{} for _ in chunk]
            continue
        # Padding the number of masks keeps the number of compiled shapes small.
        padded = 1 << (num_masks - 1).bit_length()

        def program(inputs: Inputs, padded: int = padded) -> jax.Array:
            positions_BxM = mask_positions(tokenizer, inputs, padded, fill=0)
            return token_log_probs(bert, inputs, positions_BxM)

        for at, log_probs_MxW in zip(positions, bert.run(chunk, program), strict=True):
            guesses.append(dict(zip(at, map(best, log_probs_MxW), strict=False)))
    return guesses


def mask_positions(tokenizer: Tokenizer, inputs: Inputs, num_masks: int, fill: int) -> np.ndarray:
    """Finds the masks of each row, int32 [B, num_masks]; `fill` where a row has fewer."""
    positions_BxM = np.full((len(inputs.input_ids_BxL), num_masks), fill, np.int32)
    for positions_M, ids_L in zip(positions_BxM, inputs.input_ids_BxL, strict=True):
        found = np.flatnonzero(ids_L == tokenizer.mask_id)
        positions_M[: len(found)] = found
    return positions_BxM


def token_log_probs(bert: "Bert", inputs: Inputs, positions_BxM: np.ndarray) -> jax.Array:
    """Computes the log-probabilities of the tokens at some positions: float32 [B, M, W]."""
    (term,) = make_terms([bert.masked_lm])
    zeros_BxM = np.zeros_like(positions_BxM)
    return forward.log_probs(
        bert.config,
        bert.params,
        inputs,
        term,
        masked_lm_positions=positions_BxM,
        # The generator would put samples where the weight is not 0.
        masked_lm_ids=zeros_BxM,
        masked_lm_weights=zeros_BxM.astype(np.float32),
    )


def count_masks(tokenizer: Tokenizer, text: Text) -> int:
    sides = (text,) if isinstance(text, str) else text
    return sum(len(tokenizer.split_at_masks(side)) - 1 for side in sides)
