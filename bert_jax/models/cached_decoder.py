"""The decoder for one position at a time, with the keys and values of earlier ones in a cache.

The modules have the parameters of `encoder.Block`, by the same names.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.attention import SelfAttention
from bert_jax.models.bert import BertEncoder
from bert_jax.models.bert_config import BertConfig
from bert_jax.models.embeddings import embedded_rows, vocabulary_logits
from bert_jax.models.generation import Search, generate
from bert_jax.models.heads import vocabulary_bias
from bert_jax.models.layers import ACTIVATIONS, LayerNorm, Projection, add_bias


class KeysAndValues(NamedTuple):
    """Projected states; X stands for the axes of rows and beams.

    Attributes:
      key_XxLxAxK, value_XxLxAxK: In `config.dtype`.
    """

    key_XxLxAxK: jax.Array
    value_XxLxAxK: jax.Array


class CachedAttention(SelfAttention):
    """Attention of the last position of B rows of N beams to earlier positions or to the source."""

    @nn.compact
    def __call__(
        self,
        hidden_BxNxD: jax.Array,
        cache: KeysAndValues,
        position: jax.Array | None = None,
        mask_BxL: jax.Array | None = None,
    ) -> tuple[jax.Array, KeysAndValues]:
        """Returns [B, N, D] in `config.dtype`, and the cache.

        Args:
          hidden_BxNxD: The states of the last position.
          cache: [B, N, L, A, K] for the decoder's own positions; [B, L, A, K] for those of the
            source, which the beams share.
          position: The last position, whose key and value are put into the cache; None for the
            source.
          mask_BxL: int32, 1 at real tokens of the source; None for the decoder's positions.
        """
        c = self.config
        hidden_BxNxD = hidden_BxNxD.astype(c.dtype)
        (query, key, value), (output_kernel, output_bias) = (
            list(self._projections()),
            self._output_projection(),
        )
        query_BxNxAxK = projected(hidden_BxNxD, *query, c) * jnp.asarray(
            c.head_depth**-0.5, c.dtype
        )
        if position is None:
            axes, allowed = "BLAK", mask_BxL[:, None, None] > 0
        else:
            new = projected(hidden_BxNxD, *key, c), projected(hidden_BxNxD, *value, c)
            cache = KeysAndValues(
                *(x.at[:, :, position].set(y) for x, y in zip(cache, new, strict=True))
            )
            axes, allowed = "BNLAK", jnp.arange(cache.key_XxLxAxK.shape[2]) <= position
        scores_BxNxAxL = jnp.einsum(
            f"BNAK,{axes}->BNAL",
            query_BxNxAxK,
            cache.key_XxLxAxK,
            preferred_element_type=jnp.float32,
        )
        bias = jnp.where(allowed, 0.0, jnp.finfo(jnp.float32).min)
        probs_BxNxAxL = jax.nn.softmax(scores_BxNxAxL + bias).astype(c.dtype)
        context = jnp.einsum(f"BNAL,{axes}->BNAK", probs_BxNxAxL, cache.value_XxLxAxK)
        output_BxNxD = jnp.einsum("BNAK,AKD->BND", context, output_kernel.astype(c.dtype))
        return add_bias(output_BxNxD, output_bias), cache


def projected(
    states_XxD: jax.Array, kernel_DxAxK: jax.Array, bias_AxK: jax.Array, config: BertConfig
) -> jax.Array:
    """Returns [..., A, K] in `config.dtype`."""
    heads = jnp.einsum("...D,DAK->...AK", states_XxD, kernel_DxAxK.astype(config.dtype))
    return heads + bias_AxK.astype(config.dtype)


class CachedBlock(nn.Module):
    """A block of the decoder, without dropout."""

    config: BertConfig

    def setup(self):
        c = self.config
        self.attention, self.cross_attention = CachedAttention(c), CachedAttention(c)
        self.attention_layer_norm, self.cross_attention_layer_norm = LayerNorm(c), LayerNorm(c)
        self.intermediate = Projection(c, c.intermediate_size, ("embed", "mlp"), activated=True)
        self.output = Projection(c, c.hidden_size, ("mlp", "embed"))
        self.output_layer_norm = LayerNorm(c)

    def __call__(
        self,
        hidden_BxNxD: jax.Array,
        cache: KeysAndValues,
        source: KeysAndValues,
        position: jax.Array,
        source_mask_BxL: jax.Array,
    ) -> tuple[jax.Array, KeysAndValues]:
        """Returns the states of the last position, [B, N, D], and the cache with this position."""
        attended_BxNxD, cache = self.attention(hidden_BxNxD, cache, position)
        hidden_BxNxD = self.attention_layer_norm(hidden_BxNxD + attended_BxNxD)
        attended_BxNxD, _ = self.cross_attention(hidden_BxNxD, source, mask_BxL=source_mask_BxL)
        hidden_BxNxD = self.cross_attention_layer_norm(hidden_BxNxD + attended_BxNxD)
        inner_BxNxF = ACTIVATIONS[self.config.hidden_act](self.intermediate(hidden_BxNxD))
        return self.output_layer_norm(hidden_BxNxD + self.output(inner_BxNxF)), cache


def generate_texts(
    config: BertConfig, params: Any, batch: Mapping[str, jax.Array], search: Search
) -> jax.Array:
    """Generates a text for each row; see `generate`.

    Args:
      config: The shape of the model, which must have a decoder.
      params: The parameters of a model with an encoder `bert`.
      batch: The inputs of the encoder, each [B, L]. Rows without tokens only fill up the batch.
      search: The settings.

    Returns:
      int32 [B, T].
    """
    mask_BxL, decoder = batch["attention_mask"], params["bert"]["decoder"]
    source_BxLxD, _ = BertEncoder(config, has_pooler=False).apply(
        {"params": params["bert"]},
        batch["input_ids"],
        batch["token_type_ids"],
        mask_BxL,
        deterministic=True,
    )
    blocks = [_block_params(decoder, i) for i in range(config.num_decoder_layers)]
    sources = [
        KeysAndValues(
            *(
                projected(source_BxLxD, weights[f"{name}_kernel"], weights[f"{name}_bias"], config)
                for name in ("key", "value")
            )
        )
        for weights in (block["cross_attention"] for block in blocks)
    ]
    shape = (len(mask_BxL), search.num_beams, search.max_new_tokens)
    empty = jnp.zeros((*shape, config.num_attention_heads, config.head_depth), config.dtype)
    table_WxE = params["bert"]["embeddings"]["word_embeddings"].astype(config.dtype)
    bias_W = vocabulary_bias(config)

    def step(caches, ids_BxN, position):
        hidden_BxNxD = embedded_rows(table_WxE, ids_BxN)
        hidden_BxNxD += decoder["position_embeddings"][position]
        hidden_BxNxD = LayerNorm(config).apply({"params": decoder["layer_norm"]}, hidden_BxNxD)
        filled = []
        for block, cache, source in zip(blocks, caches, sources, strict=True):
            hidden_BxNxD, cache = CachedBlock(config).apply(
                {"params": block}, hidden_BxNxD, cache, source, position, mask_BxL
            )
            filled.append(cache)
        return vocabulary_logits(hidden_BxNxD, table_WxE, bias_W), filled

    caches = [KeysAndValues(empty, empty)] * len(blocks)
    return generate(search, step, caches, jnp.any(mask_BxL > 0, axis=1))


def _block_params(decoder: Any, index: int) -> Any:
    """Returns the parameters of a block, which are stacked if `config.scan_layers` is set."""
    if "layers" in decoder:
        return jax.tree.map(lambda x: x[index], decoder["layers"]["layer"])
    return decoder[f"layer_{index}"]
