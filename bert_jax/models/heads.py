"""What stands on the encoder: the pooler, the masked-LM head and the layer that ends all others."""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.activations import ACTIVATIONS
from bert_jax.models.bert_config import BertConfig
from bert_jax.models.layers import LayerNorm, Projection, zeros_init

# A logit whose softmax is 0; the lowest number that is finite in bfloat16 too.
NO_PROBABILITY = float(jnp.finfo(jnp.bfloat16).min)


class Pooler(nn.Module):
    """A tanh layer on the hidden state of [CLS], the first position."""

    config: BertConfig

    @nn.compact
    def __call__(self, hidden_BxLxD: jax.Array) -> jax.Array:
        """Returns pooled_BxD."""
        dense = Projection(self.config, self.config.hidden_size, ("embed", "pooled"), name="dense")
        first_BxD = nn.with_logical_constraint(hidden_BxLxD[:, 0], ("batch", None))
        return nn.with_logical_constraint(jnp.tanh(dense(first_BxD)), ("batch", None))


class MaskedLanguageModelHead(nn.Module):
    """Dense, activation, LayerNorm, then the tied decoder with a bias of its own."""

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        hidden_BxLxD: jax.Array,
        masked_lm_positions_BxM: jax.Array,
        decode: Callable[[jax.Array, jax.Array], jax.Array],
    ) -> jax.Array:
        """Returns float32 logits_BxMxW at the masked positions only.

        Those beyond the vocabulary are so low that they have no probability, and what
        they are computed from no gradient.

        Args:
          hidden_BxLxD: The encoder's output.
          masked_lm_positions_BxM: int32 positions to predict. They are gathered
            first: the head then costs M/L of what it would on every position.
          decode: (hidden_BxMxD, bias_W) -> logits_BxMxW, with the word embeddings.
        """
        c = self.config
        hidden_BxLxD = nn.with_logical_constraint(hidden_BxLxD, ("batch", None, None))
        hidden_BxMxD = jnp.take_along_axis(
            hidden_BxLxD, masked_lm_positions_BxM[:, :, None], axis=1
        )
        hidden_BxMxD = Projection(c, c.hidden_size, ("embed", "pooled"), name="transform")(
            nn.with_logical_constraint(hidden_BxMxD, ("batch", None, None))
        )
        hidden_BxMxD = ACTIVATIONS[c.hidden_act](hidden_BxMxD)
        hidden_BxMxD = LayerNorm(c, name="layer_norm")(hidden_BxMxD)
        bias_W = self.param("output_bias", zeros_init("vocab"), (c.padded_vocab_size,))
        # In the bias, the padding costs nothing where there are logits by the million.
        is_entry_W = jnp.arange(c.padded_vocab_size) < c.vocab_size
        return decode(hidden_BxMxD, jnp.where(is_entry_W, bias_W, NO_PROBABILITY))


class OutputLayer(nn.Module):
    """Logits of next sentence, of labels, of the ends of spans: few numbers, a loss on each."""

    config: BertConfig
    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns float32 [..., features] for x [..., D]."""
        # So few numbers: float32 whatever the rest is.
        config = dataclasses.replace(self.config, dtype=jnp.float32)
        logits = Projection(config, self.features, ("embed", "classes"), name="dense")(x)
        return nn.with_logical_constraint(logits, ("batch",) + (None,) * (x.ndim - 1))
