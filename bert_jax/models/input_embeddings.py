"""Word, position and segment embeddings, summed, and the logits of a decoder tied to them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.dropout import Dropout
from bert_jax.models.layers import LayerNorm, column_sums, weight_init
from bert_jax.models.on_devices import num_batch_shards


class BertEmbeddings(nn.Module):
    """Sums three tables, then applies LayerNorm and dropout (paper, section 3).

    The tables and the output have the width E, `config.embedding_width`. A model without token
    types has no segment table, one with rotary positions no position table, and `config.norm` may
    say that there is no LayerNorm.

    Attributes:
      table_WxE: The word embeddings in `config.dtype`, for lookups and for tied decoders. If their
        width is sharded over devices, this is the gathered table: each device then looks up the
        rows of its own tokens. Otherwise the hidden states of all rows of the batch would have to
        move. Gathering after the conversion moves half of the bytes, and once for both uses.
    """

    config: BertConfig

    def setup(self):
        c = self.config

        def table(name, init, rows):
            return self.param(name, init, (rows, c.embedding_width))

        words_WxE = table("word_embeddings", vocabulary_init(c), c.padded_vocab_size)
        self.table_WxE = nn.with_logical_constraint(words_WxE.astype(c.dtype), ("vocab", None))
        if not c.rope_theta:
            self.position_embeddings = table(
                "position_embeddings", position_init(c), c.max_position_embeddings
            )
        if c.type_vocab_size:
            self.token_type_embeddings = table(
                "token_type_embeddings", weight_init(c, "segment", "embed"), c.type_vocab_size
            )
        if c.has_embedding_norm:
            self.layer_norm = LayerNorm(c)
        self.dropout = Dropout(c.hidden_dropout_prob)

    def __call__(
        self,
        input_ids_BxL: jax.Array,
        token_type_ids_BxL: jax.Array,
        deterministic: bool,
        position_ids_BxL: jax.Array | None = None,
        numbers_BxL: jax.Array | None = None,
        sequences_per_row: int = 1,
    ) -> jax.Array:
        """Returns embedded_BxLxE in `config.dtype`; L is at most max_position_embeddings.

        Positions count from 0 in each row, or are `position_ids_BxL`, all below L. The mask or the
        numbers of sequences, see `Encoder`, are read if there is `config.token_dropout`.
        """
        length = input_ids_BxL.shape[-1]
        embedded_BxLxE = embedded_rows(self.table_WxE, input_ids_BxL)
        if self.config.token_dropout:
            embedded_BxLxE *= _mask_scale(
                self.config, input_ids_BxL, numbers_BxL, sequences_per_row
            )[..., None]
        if self.config.rope_theta:
            pass  # Only distances matter, and sequences that share a row do not see each other.
        elif position_ids_BxL is None:
            embedded_BxLxE += self.position_embeddings[None, :length]
        else:
            embedded_BxLxE += _one_hot_rows(self.position_embeddings[:length], position_ids_BxL)
        if self.config.type_vocab_size:
            embedded_BxLxE += _one_hot_rows(self.token_type_embeddings, token_type_ids_BxL)
        embedded_BxLxE = nn.with_logical_constraint(embedded_BxLxE, ("batch", None, None))
        if self.config.has_embedding_norm:
            embedded_BxLxE = self.layer_norm(embedded_BxLxE)
        return self.dropout(embedded_BxLxE.astype(self.config.dtype), deterministic)


def _mask_scale(
    config: BertConfig, input_ids_BxL: jax.Array, numbers_BxL: jax.Array, sequences_per_row: int
) -> jax.Array:
    """Returns the factor of each token's embedding that `config.token_dropout` says, [B, L]."""
    is_mask_BxL = input_ids_BxL == config.mask_token_id
    # Padding has the number 0.
    of_sequence_BxLxP = jax.nn.one_hot(numbers_BxL, sequences_per_row + 1)
    length_BxP = jnp.sum(of_sequence_BxLxP, axis=1)
    kept_BxP = length_BxP - jnp.einsum("BLP,BL->BP", of_sequence_BxLxP, is_mask_BxL * 1.0)
    scale_BxP = (1 - config.token_dropout) * length_BxP / jnp.maximum(kept_BxP, 1)
    return jnp.where(is_mask_BxL, 0, jnp.take_along_axis(scale_BxP, numbers_BxL, axis=1))


@jax.custom_vjp
def embedded_rows(table_WxE: jax.Array, ids_BxL: jax.Array) -> jax.Array:
    """Looks up rows of the table, float32 [B, L, E]."""
    return table_WxE[ids_BxL].astype(jnp.float32)


def _rows_backward(residuals, gradient_BxLxE):
    """Sums the gradients of each row in float32 on each device, and rounds the sum.

    The sum over devices then moves half of the bytes.
    """
    table_WxE, ids_BxL = residuals

    def sums_of(ids, gradient):
        return jnp.zeros(table_WxE.shape, jnp.float32).at[ids].add(gradient)

    shards = num_batch_shards()
    if shards == 1:
        return sums_of(ids_BxL, gradient_BxLxE).astype(table_WxE.dtype), None
    ids_SxN = ids_BxL.reshape(shards, -1)
    gradient_SxNxE = gradient_BxLxE.reshape(shards, -1, table_WxE.shape[1])
    sums_SxWxE = jax.vmap(sums_of)(ids_SxN, gradient_SxNxE)
    sums_SxWxE = nn.with_logical_constraint(sums_SxWxE, ("batch", "vocab", None))
    sums_SxWxE = sums_SxWxE.astype(table_WxE.dtype)
    # jnp.sum would convert back to float32.
    return jax.lax.reduce(sums_SxWxE, jnp.zeros((), table_WxE.dtype), jax.lax.add, (0,)), None


embedded_rows.defvjp(
    lambda table_WxE, ids_BxL: (embedded_rows(table_WxE, ids_BxL), (table_WxE, ids_BxL)),
    _rows_backward,
)


def _one_hot_rows(table_NxE: jax.Array, index_BxL: jax.Array) -> jax.Array:
    """Returns the rows of a small table with some indices, rows_BxLxE.

    A product with one-hot vectors is cheaper than a gather, and its gradient is a sum instead of a
    scatter.
    """
    one_hot_BxLxN = jax.nn.one_hot(index_BxL, len(table_NxE))
    # By default a TPU would round the table to bfloat16.
    return jnp.matmul(one_hot_BxLxN, table_NxE, precision="highest")


def vocabulary_logits(
    hidden_BxMxE: jax.Array, table_WxE: jax.Array, bias_W: jax.Array
) -> jax.Array:
    """Returns float32 logits_BxMxW: the product with the word embeddings, plus a bias.

    The product is computed in the dtype of `hidden_BxMxE`.
    """
    return _logits(hidden_BxMxE, table_WxE.astype(hidden_BxMxE.dtype), bias_W)


@jax.custom_vjp
def _logits(hidden_BxMxE: jax.Array, table_WxE: jax.Array, bias_W: jax.Array) -> jax.Array:
    scores_BxMxW = jnp.einsum(
        "BME,WE->BMW", hidden_BxMxE, table_WxE, preferred_element_type=jnp.float32
    )
    return scores_BxMxW + bias_W


def _logits_forward(hidden_BxMxE, table_WxE, bias_W):
    return _logits(hidden_BxMxE, table_WxE, bias_W), (hidden_BxMxE, table_WxE)


def _logits_backward(residuals, gradient_BxMxW):
    hidden_BxMxE, table_WxE = residuals
    # Computes the gradient of the softmax once, in the dtype of the products. The compiler would
    # otherwise recompute it from float32 logits for each of its three uses.
    gradient_BxMxW = jax.lax.optimization_barrier(gradient_BxMxW.astype(table_WxE.dtype))
    hidden_gradient_BxMxE = jnp.einsum("BMW,WE->BME", gradient_BxMxW, table_WxE)
    table_gradient_WxE = jnp.einsum("BMW,BME->WE", gradient_BxMxW, hidden_BxMxE)
    return hidden_gradient_BxMxE, table_gradient_WxE, column_sums(gradient_BxMxW)


_logits.defvjp(_logits_forward, _logits_backward)


def vocabulary_init(config: BertConfig):
    """Returns an initializer that leaves the rows beyond the vocabulary zero."""

    def init(key: jax.Array, shape: tuple[int, ...], dtype=jnp.float32):
        is_token_W = jnp.arange(shape[0]) < config.vocab_size
        return jax.tree.map(
            lambda table_WxE: jnp.where(is_token_W[:, None], table_WxE, 0.0),
            weight_init(config, "vocab", "embed")(key, shape, dtype),
        )

    return init


def position_init(config: BertConfig):
    """Returns BERT's random initializer, or one with sinusoids of a given amplitude.

    In a table of sinusoids (Vaswani et al. 2017, section 3.5), rows n positions apart differ by the
    same rotation everywhere. A head that attends n words back has one rotation to learn, not one
    for every position.
    """
    amplitude = config.sinusoidal_positions
    if not amplitude:
        return weight_init(config, "position", "embed")

    def init(key: jax.Array, shape: tuple[int, int], dtype=jnp.float32):
        # A constant: sines computed on different devices could differ in the last bit.
        return jnp.asarray(amplitude * _sinusoids(*shape), dtype)

    return nn.with_logical_partitioning(init, ("position", "embed"))


def _sinusoids(positions: int, width: int) -> np.ndarray:
    """Returns float64 [positions, width]: sines of falling frequency, then their cosines."""
    pairs = -(-width // 2)
    frequencies = 10_000.0 ** (-np.arange(pairs) / pairs)
    angles = np.arange(positions)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :width]


def has_vocabulary(name: str) -> bool:
    """Returns whether a parameter, by its path, has a row for each token of the vocabulary."""
    # Attention has an `output_bias` too.
    is_decoder_bias = name.endswith("/output_bias") and not name.endswith("attention/output_bias")
    is_table = name.endswith(("/word_embeddings", "/output_embeddings"))
    return is_table or is_decoder_bias or name == "query_weights"
