"""What stands on the encoder: the pooler and the two pre-training heads."""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.layers import ACTIVATIONS, Projection, layer_norm, zeros_init


class Pooler(nn.Module):
    """A tanh layer on the hidden state of [CLS], the first position."""

    config: BertConfig

    @nn.compact
    def __call__(self, hidden_BxLxD: jax.Array) -> jax.Array:
        """Returns pooled_BxD."""
        dense = Projection(self.config, self.config.hidden_size, ("embed", "pooled"), name="dense")
        return jnp.tanh(dense(hidden_BxLxD[:, 0]))


class MaskedLanguageModelHead(nn.Module):
    """Dense, activation, LayerNorm, then the tied decoder with a bias of its own."""

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        hidden_BxLxD: jax.Array,
        masked_lm_positions_BxM: jax.Array,
        decode: Callable[[jax.Array], jax.Array],
    ) -> jax.Array:
        """Returns float32 logits_BxMxV at the masked positions only.

        Args:
          hidden_BxLxD: The encoder's output.
          masked_lm_positions_BxM: int32 positions to predict. They are gathered
            first: the head then costs M/L of what it would on every position.
          decode: The product with the word embeddings, [B, M, D] -> [B, M, V].
        """
        c = self.config
        hidden_BxMxD = jnp.take_along_axis(
            hidden_BxLxD, masked_lm_positions_BxM[:, :, None], axis=1
        )
        hidden_BxMxD = Projection(c, c.hidden_size, ("embed", "pooled"), name="transform")(
            hidden_BxMxD
        )
        hidden_BxMxD = ACTIVATIONS[c.hidden_act](hidden_BxMxD)
        hidden_BxMxD = layer_norm(c, "layer_norm")(hidden_BxMxD)
        bias_V = self.param("output_bias", zeros_init("vocab"), (c.vocab_size,))
        return decode(hidden_BxMxD) + bias_V


class NextSentenceHead(nn.Module):
    """Two classes on the pooled [CLS]: 0 is the next sentence, 1 a random one."""

    config: BertConfig

    @nn.compact
    def __call__(self, pooled_BxD: jax.Array) -> jax.Array:
        """Returns float32 logits_Bx2."""
        # So few numbers, and a loss hangs on each: float32 whatever the rest is.
        config = dataclasses.replace(self.config, dtype=jnp.float32)
        return Projection(config, 2, ("embed", "classes"), name="dense")(pooled_BxD)
