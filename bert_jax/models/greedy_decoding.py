"""The text that a model with a decoder writes: always the likeliest next token."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.bert_encoder import BertEncoder
from bert_jax.models.heads import vocabulary_bias
from bert_jax.models.input_embeddings import vocabulary_logits


@partial(jax.jit, static_argnames=("config", "length", "sep_id", "pad_id"))
def denoised(
    config: BertConfig,
    params: Any,
    input_ids_BxL: jax.Array,
    attention_mask_BxL: jax.Array,
    *,
    length: int,
    sep_id: int,
    pad_id: int,
) -> jax.Array:
    """Writes the text of each corrupted row, always with the likeliest next token.

    Each token needs a pass of the decoder over the text so far. A text is cut at `longest_text`.

    Args:
      params: Those of the encoder and the decoder.
      length: The number of tokens T at which all texts are cut.
      sep_id: The token that opens the input of the decoder and ends a text.

    Returns:
      int32 [B, T]: `sep_id`, [CLS], the text, `sep_id` unless the text is cut, and padding.
    """
    bert, variables = BertEncoder(config, has_pooler=False), {"params": params}
    inputs = input_ids_BxL, jnp.zeros_like(input_ids_BxL), attention_mask_BxL
    source_BxLxD, _ = bert.apply(variables, *inputs, deterministic=True)
    lengths_B = jnp.sum(attention_mask_BxL, axis=1)
    last_B = jnp.minimum(longest_text(lengths_B), length) - 2

    def next_ids(bert: BertEncoder, ids_BxT: jax.Array, at: jax.Array) -> jax.Array:
        source, table_WxE = (source_BxLxD, attention_mask_BxL), bert.embeddings.table_WxE
        states_BxTxD = bert.decoder(ids_BxT, jnp.ones_like(ids_BxT), *source, table_WxE, True)
        state_Bx1xD = jax.lax.dynamic_slice_in_dim(states_BxTxD, at, 1, axis=1)
        logits_Bx1xW = vocabulary_logits(state_Bx1xD, table_WxE, vocabulary_bias(config))
        return jnp.argmax(logits_Bx1xW[:, 0], axis=-1)

    def write(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        at, ids_BxT, is_open_B = carry
        found_B = bert.apply(variables, ids_BxT, at, method=next_ids)
        ids_BxT = ids_BxT.at[:, at + 1].set(jnp.where(is_open_B, found_B, pad_id))
        return at + 1, ids_BxT, is_open_B & (found_B != sep_id) & (at + 1 < last_B)

    ids_BxT = jnp.full((len(input_ids_BxL), length), pad_id, jnp.int32).at[:, 0].set(sep_id)
    # Rows of padding have no text.
    first = jnp.int32(0), ids_BxT, lengths_B > 0
    return jax.lax.while_loop(lambda carry: jnp.any(carry[2]), write, first)[1]


def longest_text(length: int | jax.Array) -> int | jax.Array:
    """Returns the number of tokens at which `denoised` cuts the text of a corrupted row."""
    return 2 * length + 16
