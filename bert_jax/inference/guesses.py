"""Predicts the tokens at the masked positions of rows."""

import math
from collections.abc import Callable, Sequence

import jax
import numpy as np

from bert_jax.inference.compiled_forward import Inputs
from bert_jax.inference.predictions import Guess
from bert_jax.tokenizers import Tokenizer, TokenRow

# The rows that are predicted together. Each mask needs an array as long as the vocabulary.
_CHUNK_ROWS = 64


def guess_masks(
    rows: Sequence[TokenRow],
    top_k: int,
    vocab_size: int,
    tokenizer: Tokenizer,
    run: Callable[[Sequence[TokenRow], Callable[[Inputs], jax.Array]], list[np.ndarray]],
    log_probs: Callable[[Inputs, np.ndarray], jax.Array],
) -> list[dict[int, list[Guess]]]:
    """Returns the most likely tokens of each masked position of each row.

    Args:
      rows: Rows of any length.
      top_k: The number of tokens for each position.
      vocab_size: The number of entries without padding.
      run: Runs a compiled program on rows in batches.
      log_probs: (inputs, positions_BxM) -> log_probs_BxMxW.
    """

    def masks(ids_L: np.ndarray) -> np.ndarray:
        return np.flatnonzero(ids_L == tokenizer.mask_id)

    def best(log_probs_W: np.ndarray) -> list[Guess]:
        log_probs_V = log_probs_W[:vocab_size]
        ranked = np.argsort(-log_probs_V, kind="stable")[:top_k]
        return [Guess(tokenizer.piece_text(i), math.exp(log_probs_V[i])) for i in ranked]

    guesses = []
    for first in range(0, len(rows), _CHUNK_ROWS):
        chunk = rows[first : first + _CHUNK_ROWS]
        positions = [masks(row.input_ids_L).tolist() for row in chunk]
        most = max(map(len, positions))
        if not most:
            guesses += [{} for _ in chunk]
            continue
        # Padding the number of masks keeps the number of compiled shapes small.
        padded = 1 << (most - 1).bit_length()

        def program(inputs: Inputs, padded: int = padded) -> jax.Array:
            positions_BxM = np.zeros((len(inputs.input_ids_BxL), padded), np.int32)
            for positions_M, ids_L in zip(positions_BxM, inputs.input_ids_BxL, strict=True):
                positions_M[: len(masks(ids_L))] = masks(ids_L)
            return log_probs(inputs, positions_BxM)

        for at, log_probs_MxW in zip(positions, run(chunk, program), strict=True):
            guesses.append(dict(zip(at, map(best, log_probs_MxW), strict=False)))
    return guesses
