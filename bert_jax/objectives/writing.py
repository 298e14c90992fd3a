"""Writes text by filling masks step by step (masked diffusion), in one compiled program."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models import BertConfig
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.objective import apply
from bert_jax.objectives.term import Term, with_tokens
from bert_jax.tokenizers import Tokenizer

# Stands for a mask in a text that is not finished.
OPEN = "_"


def may_be_written(tokenizer: Tokenizer, config: BertConfig) -> np.ndarray:
    """Returns which tokens may be written, bool [W]: those of text, and [SEP]."""
    may_W = np.arange(config.padded_vocab_size) < config.vocab_size
    may_W[[i for i in tokenizer.special_ids if i != tokenizer.sep_id]] = False
    return may_W


@partial(jax.jit, static_argnames=("config", "term", "samples", "steps", "block", "is_random"))
def filled(
    config: BertConfig,
    params: Any,
    batch: dict[str, jax.Array],
    positions_BxM: np.ndarray,
    may_write_W: np.ndarray,
    key: jax.Array,
    temperature: float,
    *,
    term: Term,
    samples: int,
    steps: int,
    block: int,
    is_random: bool,
) -> jax.Array:
    """Fills the masks of each row S times, each time with different random numbers.

    Args:
      batch: The fields of the encoder, [B, L].
      positions_BxM: The masks of each row, ascending; -1 where a row has fewer than M.
      may_write_W: bool, the tokens that may be written.
      key: Each sample draws its own random numbers from it; all rows share them.

    Returns:
      float32 [B, S, 2, M]: the tokens, and the steps, from 0, at which they were kept; NaN where
      the model computes NaN.
    """
    num_rows, num_masks = positions_BxM.shape
    repeat = partial(jnp.repeat, repeats=samples, axis=0)
    batch, positions_NxM = jax.tree.map(repeat, (batch, jnp.asarray(positions_BxM)))
    is_mask_NxM, at_NxM = positions_NxM >= 0, jnp.maximum(positions_NxM, 0)
    batch["masked_lm_positions"], batch["masked_lm_ids"] = at_NxM, jnp.zeros_like(at_NxM)
    # The generator of ELECTRA would put samples where the weight is not 0.
    batch["masked_lm_weights"] = jnp.zeros(at_NxM.shape, jnp.float32)
    block_of_M = jnp.arange(num_masks) // block
    number_Nx1 = jnp.sum(is_mask_NxM, axis=1, keepdims=True)
    steps_Nx1 = jnp.clip(number_Nx1, 1, steps)
    blocks_Nx1 = jnp.maximum(-(-number_Nx1 // block), 1)

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        of_tokens, of_order = jax.random.split(key)
        noise_MxW = jax.random.gumbel(of_tokens, (num_masks, len(may_write_W)))
        return noise_MxW, jax.random.uniform(of_order, (num_masks,))

    def step(carry: tuple[jax.Array, jax.Array], now: jax.Array) -> tuple[Any, jax.Array]:
        ids_NxL, kept_NxM = carry
        model = PreTrainingModel(config, (term,))
        logits_NxMxW = apply(model, params, {**batch, "input_ids": ids_NxL})[term.name]
        log_probs_NxMxW = jax.nn.log_softmax(jnp.where(may_write_W, logits_NxMxW, -jnp.inf))
        keys_S = jax.random.split(jax.random.fold_in(key, now), samples)
        noise_NxMxW, order_NxM = (
            jnp.tile(x, (num_rows,) + (1,) * (x.ndim - 1)) for x in jax.vmap(draw)(keys_S)
        )
        new_NxM = jnp.argmax(log_probs_NxMxW + temperature * noise_NxMxW, axis=-1)
        # A single NaN among the logits makes all probabilities NaN.
        is_nan_N = jnp.isnan(log_probs_NxMxW[..., 0]).any(axis=1)
        if not is_random:
            order_NxM = jnp.take_along_axis(log_probs_NxMxW, new_NxM[..., None], axis=-1)[..., 0]
        # The block whose turn it is, and the steps until its end.
        block_Nx1 = now * blocks_Nx1 // steps_Nx1
        left_Nx1 = jnp.maximum(-(-(block_Nx1 + 1) * steps_Nx1 // blocks_Nx1) - now, 1)
        is_open_NxM = is_mask_NxM & (kept_NxM < 0) & (block_of_M == block_Nx1)
        number_Nx1 = -(-jnp.sum(is_open_NxM, axis=1, keepdims=True) // left_Nx1)
        first_NxM = jnp.argsort(jnp.where(is_open_NxM, -order_NxM, jnp.inf), axis=1)
        is_kept_NxM = is_open_NxM & (jnp.argsort(first_NxM, axis=1) < number_Nx1)
        ids_NxL = with_tokens(ids_NxL, at_NxM, new_NxM.astype(jnp.int32), is_kept_NxM)
        return (ids_NxL, jnp.where(is_kept_NxM, now, kept_NxM)), is_nan_N

    first = batch["input_ids"], jnp.full_like(at_NxM, -1)
    (ids_NxL, kept_NxM), is_nan_TxN = jax.lax.scan(step, first, jnp.arange(steps))
    tokens_NxM = jnp.take_along_axis(ids_NxL, at_NxM, axis=1)
    filled_Nx2xM = jnp.stack([tokens_NxM, kept_NxM], axis=1)
    filled_Nx2xM = jnp.where(is_nan_TxN.any(axis=0)[:, None, None], jnp.nan, filled_Nx2xM)
    return filled_Nx2xM.reshape(num_rows, samples, 2, num_masks)


def after_each_step(
    ids_L: np.ndarray, at_M: np.ndarray, filled_2xM: np.ndarray
) -> Iterator[np.ndarray]:
    """Yields a row of ids after each step.

    Args:
      ids_L: The row with its masks.
      at_M: The positions of the masks.
      filled_2xM: Their part of the result of `filled`.
    """
    tokens_M, kept_M = filled_2xM.astype(int)
    for step in range(int(kept_M.max()) + 1):
        now_L = ids_L.copy()
        now_L[at_M] = np.where(kept_M <= step, tokens_M, ids_L[at_M])
        yield now_L


def text_so_far(tokenizer: Tokenizer, ids_L: np.ndarray) -> str:
    """Returns the text of a row, with "_" for each mask and no other special token."""
    hidden = {*tokenizer.special_ids} - {tokenizer.mask_id, tokenizer.unk_id}
    text = tokenizer.decode([i for i in ids_L if i not in hidden])
    return text.replace(tokenizer.special_tokens.mask, OPEN)
