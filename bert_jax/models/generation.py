"""Greedy and beam search over the tokens that a decoder predicts, one position at a time.

Both give the tokens of `generate` in `transformers` 4.57 and 5 for the same logits. Results of a
row do not depend on the other rows of its batch.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# What `transformers` adds to a score to exclude a sequence.
_EXCLUDED = -1e9
# (cache, ids_BxK, position) -> float32 logits_BxKxW of the next token, and the new cache. The
# arrays of a cache are [B, K, ...], for B rows and K beams.
Step = Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, Any]]


@dataclasses.dataclass(frozen=True)
class Search:
    """How tokens are searched; the names are those of GenerationConfig in `transformers`.

    Attributes:
      decoder_start_token_id: The first input of the decoder, which is no part of the result.
      eos_token_id: The token that ends a sequence.
      pad_token_id: The token after the end.
      max_new_tokens: T, the largest number of tokens, including the end.
      num_beams: K; 1 is greedy search.
      length_penalty: A finished beam is ranked by its log-probability / length ** length_penalty.
      early_stopping: A row ends when it has K finished beams (True), when the best running beam
        would not be ranked above them if it ended now (False), or if it ended at any length
        ("never").
      min_length: The smallest number of tokens before the end, including the decoder's first input.
      no_repeat_ngram_size: No sequence of this many tokens occurs twice; 0 allows repetitions.
      forced_bos_token_id, forced_eos_token_id: The first token, and the last one of sequences of T
        tokens; None forces none.
    """

    decoder_start_token_id: int
    eos_token_id: int
    pad_token_id: int
    max_new_tokens: int
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    min_length: int = 0
    no_repeat_ngram_size: int = 0
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None


def generate(search: Search, step: Step, cache: Any, is_row_B: jax.Array) -> jax.Array:
    """Generates the best sequence of each row.

    Args:
      search: The settings.
      step: Computes the logits after some tokens.
      cache: The cache before the first token.
      is_row_B: bool, False for rows that only fill up the batch.

    Returns:
      int32 [B, T]; `pad_token_id` follows the end. A row with a NaN in its scores has a -1.
    """
    find = _greedy if search.num_beams == 1 else _beam_search
    # The first token is the decoder's first input.
    return find(search, step, cache, is_row_B)[:, 1:]


def _greedy(search: Search, step: Step, cache: Any, is_row_B: jax.Array) -> jax.Array:
    """Takes the most likely token at each position; returns int32 [B, 1 + T]."""

    def is_running(state):
        position, _, is_done_B, _ = state
        return (position < search.max_new_tokens) & ~jnp.all(is_done_B)

    def extend(state):
        position, ids_BxT, is_done_B, cache = state
        logits_Bx1xW, cache = step(cache, ids_BxT[:, position, None], position)
        scores_Bx1xW = _constrained(search, logits_Bx1xW, ids_BxT[:, None], position)
        next_B = jnp.argmax(scores_Bx1xW[:, 0], axis=-1).astype(jnp.int32)
        next_B = jnp.where(jnp.any(jnp.isnan(scores_Bx1xW[:, 0]), axis=-1), -1, next_B)
        next_B = jnp.where(is_done_B, search.pad_token_id, next_B)
        is_done_B |= (next_B == search.eos_token_id) | (next_B < 0)
        return position + 1, ids_BxT.at[:, position + 1].set(next_B), is_done_B, cache

    state = (jnp.int32(0), _starts(search, len(is_row_B)), ~is_row_B, cache)
    return jax.lax.while_loop(is_running, extend, state)[1]


class _Beams(NamedTuple):
    """The state of a beam search.

    Attributes:
      position: The position of the last token of the running beams.
      ids_BxKxT, scores_BxK: The running beams and their log-probabilities, the best first.
      finished_ids_BxKxT, finished_scores_BxK: The best finished beams and their log-probabilities
        divided by the length penalty, the best first.
      is_finished_BxK: Whether each of the K positions has a finished beam.
      may_improve_B: Whether a running beam may still be ranked above a finished one.
      cache: The cache of the running beams.
    """

    position: jax.Array
    ids_BxKxT: jax.Array
    scores_BxK: jax.Array
    finished_ids_BxKxT: jax.Array
    finished_scores_BxK: jax.Array
    is_finished_BxK: jax.Array
    may_improve_B: jax.Array
    cache: Any


def _beam_search(search: Search, step: Step, cache: Any, is_row_B: jax.Array) -> jax.Array:
    """Returns the best finished beam of each row, int32 [B, 1 + T]."""
    num_rows, size, last = len(is_row_B), search.num_beams, search.max_new_tokens
    # The divisors for 1 to T tokens, rounded as in `transformers`.
    divisor_T = np.arange(1, last + 1, dtype=np.float64) ** search.length_penalty
    divisor_T = jnp.asarray(divisor_T.astype(np.float32))

    def is_running(beams):
        is_open_B = beams.may_improve_B
        if search.early_stopping is True:
            is_open_B &= ~jnp.all(beams.is_finished_BxK, axis=1)
        return jnp.any(is_open_B) & (beams.position < last)

    def extend(beams):
        logits_BxKxW, cache = step(
            beams.cache,
            jnp.take(beams.ids_BxKxT, beams.position, axis=2),
            beams.position,
        )
        log_probs_BxKxW = jax.nn.log_softmax(logits_BxKxW)
        log_probs_BxKxW = _constrained(search, log_probs_BxKxW, beams.ids_BxKxT, beams.position)
        totals_BxKxW = log_probs_BxKxW + beams.scores_BxK[:, :, None]
        # At most K candidates end here, so at least K of 2 K go on.
        scores_Bx2K, at_Bx2K = jax.lax.top_k(totals_BxKxW.reshape(num_rows, -1), 2 * size)
        beam_Bx2K, token_Bx2K = jnp.divmod(at_Bx2K, logits_BxKxW.shape[-1])
        length = beams.position + 1
        ids_Bx2KxT = _chosen(beams.ids_BxKxT, beam_Bx2K).at[:, :, length].set(token_Bx2K)
        ends_Bx2K = (token_Bx2K == search.eos_token_id) | (length == last)

        running_Bx2K = scores_Bx2K + ends_Bx2K * _EXCLUDED
        scores_BxK, running_BxK = jax.lax.top_k(running_Bx2K, size)

        # Only the first K candidates may finish.
        finishes_Bx2K = ends_Bx2K & (jnp.arange(2 * size) < size)
        ranked_Bx2K = scores_Bx2K / divisor_T[length - 1]
        if search.early_stopping is True:
            is_full_Bx1 = jnp.all(beams.is_finished_BxK, axis=1, keepdims=True)
            ranked_Bx2K += is_full_Bx1 * _EXCLUDED
        ranked_Bx2K += ~beams.may_improve_B[:, None] * _EXCLUDED
        ranked_Bx2K += ~finishes_Bx2K * _EXCLUDED
        finished_scores_BxK, best_BxK = jax.lax.top_k(
            jnp.concatenate([beams.finished_scores_BxK, ranked_Bx2K], axis=1), size
        )
        finished_ids_Bx3KxT = jnp.concatenate([beams.finished_ids_BxKxT, ids_Bx2KxT], axis=1)
        is_finished_Bx3K = jnp.concatenate([beams.is_finished_BxK, finishes_Bx2K], axis=1)
        is_finished_BxK = _chosen(is_finished_Bx3K, best_BxK)

        best_length = length
        if search.early_stopping == "never" and search.length_penalty > 0:
            best_length = last
        worst_B = jnp.where(
            jnp.all(is_finished_BxK, axis=1), jnp.min(finished_scores_BxK, axis=1), _EXCLUDED
        )
        may_improve_B = beams.may_improve_B
        may_improve_B &= scores_BxK[:, 0] / divisor_T[best_length - 1] > worst_B
        beam_BxK = _chosen(beam_Bx2K, running_BxK)
        return _Beams(
            length,
            _chosen(ids_Bx2KxT, running_BxK),
            scores_BxK,
            _chosen(finished_ids_Bx3KxT, best_BxK),
            finished_scores_BxK,
            is_finished_BxK,
            may_improve_B,
            jax.tree.map(lambda x: _chosen(x, beam_BxK), cache),
        )

    ids_BxKxT = jnp.repeat(_starts(search, num_rows)[:, None], size, axis=1)
    excluded_BxK = jnp.full((num_rows, size), _EXCLUDED, jnp.float32)
    beams = _Beams(
        position=jnp.int32(0),
        ids_BxKxT=ids_BxKxT,
        # The beams are equal at first, so only one of them counts.
        scores_BxK=excluded_BxK.at[:, 0].set(0.0),
        finished_ids_BxKxT=ids_BxKxT,
        finished_scores_BxK=excluded_BxK,
        is_finished_BxK=jnp.zeros((num_rows, size), bool),
        may_improve_B=is_row_B,
        cache=cache,
    )
    beams = jax.lax.while_loop(is_running, extend, beams)
    is_damaged_B = is_row_B & jnp.any(jnp.isnan(beams.finished_scores_BxK), axis=1)
    return jnp.where(is_damaged_B[:, None], -1, beams.finished_ids_BxKxT[:, 0])


def _starts(search: Search, num_rows: int) -> jax.Array:
    """Returns rows with the decoder's first input only, int32 [B, 1 + T]."""
    ids_BxT = jnp.full((num_rows, 1 + search.max_new_tokens), search.pad_token_id, jnp.int32)
    return ids_BxT.at[:, 0].set(search.decoder_start_token_id)


def _chosen(x_BxN: jax.Array, index_BxK: jax.Array) -> jax.Array:
    """Returns the entries [B, K, ...] of x, [B, N, ...], with some indices."""
    return jax.vmap(lambda x_N, index_K: x_N[index_K])(x_BxN, index_BxK)


def _constrained(
    search: Search, scores_BxKxW: jax.Array, ids_BxKxT: jax.Array, position: jax.Array
) -> jax.Array:
    """Gives the tokens that must not follow `position` the score -inf."""
    token_W = jnp.arange(scores_BxKxW.shape[-1])
    if search.no_repeat_ngram_size:
        repeated_BxKxW = _repeated(search.no_repeat_ngram_size, ids_BxKxT, position, len(token_W))
        scores_BxKxW = jnp.where(repeated_BxKxW, -jnp.inf, scores_BxKxW)
    if search.min_length > 1:
        is_barred_W = (token_W == search.eos_token_id) & (position + 1 < search.min_length)
        scores_BxKxW = jnp.where(is_barred_W, -jnp.inf, scores_BxKxW)
    for token, at in (
        (search.forced_bos_token_id, 0),
        (search.forced_eos_token_id, search.max_new_tokens - 1),
    ):
        if token is not None:
            forced_W = jnp.where(token_W == token, 0.0, -jnp.inf)
            scores_BxKxW = jnp.where(position == at, forced_W, scores_BxKxW)
    return scores_BxKxW


def _repeated(size: int, ids_BxKxT: jax.Array, position: jax.Array, vocab_size: int) -> jax.Array:
    """Returns whether each next token would repeat a sequence of `size` tokens, bool [B, K, W]."""
    num_windows = ids_BxKxT.shape[-1] + 1 - size
    if num_windows < 1:
        return jnp.zeros((*ids_BxKxT.shape[:2], vocab_size), bool)
    window_N = jnp.arange(num_windows)
    # The windows that lie within the tokens so far.
    repeats_BxKxN = jnp.broadcast_to(
        window_N + size - 1 <= position, (*ids_BxKxT.shape[:2], num_windows)
    )
    for i in range(size - 1):
        last_BxKx1 = jnp.take(ids_BxKxT, position + 2 - size + i, axis=2)[:, :, None]
        repeats_BxKxN &= ids_BxKxT[:, :, i : i + num_windows] == last_BxKx1
    ends_BxKxN = ids_BxKxT[:, :, size - 1 :]

    def banned(repeats_N: jax.Array, ends_N: jax.Array) -> jax.Array:
        return jnp.zeros(vocab_size, bool).at[ends_N].max(repeats_N)

    return jax.vmap(jax.vmap(banned))(repeats_BxKxN, ends_BxKxN)
