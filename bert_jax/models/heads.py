"""The heads on the encoder: the pooler, the language-model heads and a plain output layer."""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.base.batch import MAX_SPAN_TARGETS
from bert_jax.models.bert_config import BertConfig
from bert_jax.models.dropout import Dropout
from bert_jax.models.input_embeddings import vocabulary_init, vocabulary_logits
from bert_jax.models.layers import ACTIVATIONS, LayerNorm, Projection, weight_init, zeros_init

# A logit whose softmax is 0; the lowest number that is finite in bfloat16 too.
NO_PROBABILITY = float(jnp.finfo(jnp.bfloat16).min)


class Pooler(nn.Module):
    """A layer with `config.pooler_act` on the state of one token, after dropout.

    With `pooler_act` none, there is only the dropout. The token is [CLS], the first one. In a
    causal model, where [CLS] attends only to itself, it is the last real token.
    """

    config: BertConfig

    @nn.compact
    def __call__(
        self,
        hidden_BxLxD: jax.Array,
        attention_mask_BxL: jax.Array,
        deterministic: bool = True,
        cls_positions_BxP: jax.Array | None = None,
    ) -> jax.Array:
        """Returns pooled_BxD, or pooled_BxPxD for the P tokens at `cls_positions_BxP`."""
        c = self.config
        if cls_positions_BxP is None:
            token = pooled_token(c, hidden_BxLxD, attention_mask_BxL)
        else:
            token = states_at(hidden_BxLxD, cls_positions_BxP)
        axes = ("batch",) + (None,) * (token.ndim - 1)
        token = nn.with_logical_constraint(token, axes)
        token = Dropout(c.pooler_dropout_prob)(token, deterministic)
        if c.pooler_act == "none":
            return token
        dense = Projection(c, c.hidden_size, ("embed", "pooled"), name="dense")
        pooled = ACTIVATIONS[c.pooler_act](dense(token))
        return nn.with_logical_constraint(pooled, axes)


def pooled_token(
    config: BertConfig, hidden_BxLxD: jax.Array, attention_mask_BxL: jax.Array
) -> jax.Array:
    """Returns the state that represents the sequence, [B, D]; see `Pooler`.

    If `config.classifier_pooling` is mean or late, it is the mean of all real tokens.
    """
    mask_BxL = attention_mask_BxL.astype(jnp.int32)
    if config.classifier_pooling in ("mean", "late"):
        weights_BxL = mask_BxL / jnp.sum(mask_BxL, axis=1, keepdims=True)
        return jnp.einsum("BL,BLD->BD", weights_BxL, hidden_BxLxD).astype(hidden_BxLxD.dtype)
    if not config.causal:
        return hidden_BxLxD[:, 0]
    last_B = jnp.sum(mask_BxL, axis=1) - 1
    return jnp.take_along_axis(hidden_BxLxD, last_B[:, None, None], axis=1)[:, 0]


class HeadTransform(nn.Module):
    """A dense layer, activation and LayerNorm; no LayerNorm without `config.head_transform`."""

    config: BertConfig

    def setup(self):
        c = self.config
        self.transform = Projection(c, c.embedding_width, ("embed", "pooled"), is_output=True)
        self.layer_norm = LayerNorm(c)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns [..., E] for x [..., D]."""
        c = self.config
        x = ACTIVATIONS[c.head_act or c.hidden_act](self.transform(x))
        return self.layer_norm(x) if c.head_transform else x


class LanguageModelHead(HeadTransform):
    """A `HeadTransform`, then a decoder, which is usually tied to the word embeddings.

    Without `config.head_transform` there is only the decoder. The decoder's own bias is a parameter
    of this module, as is its table if it is not tied.
    """

    def setup(self):
        super().setup()
        c = self.config
        if not c.tied_decoder:
            shape = (c.padded_vocab_size, c.embedding_width)
            self.output_embeddings = self.param("output_embeddings", vocabulary_init(c), shape)
        if "decoder" not in c.biasless:
            shape = (c.padded_vocab_size,)
            self.output_bias = self.param("output_bias", zeros_init("vocab"), shape)

    def __call__(
        self, hidden_BxLxD: jax.Array, positions_BxM: jax.Array, table_WxE: jax.Array
    ) -> jax.Array:
        """Returns float32 logits_BxMxW at some positions.

        Ids beyond the vocabulary have no probability and give no gradient.

        Args:
          positions_BxM: int32 positions to predict. They are gathered first, so the head computes
            M positions instead of L.
          table_WxE: The word embeddings.
        """
        hidden_BxLxD = nn.with_logical_constraint(hidden_BxLxD, ("batch", None, None))
        return self.logits(states_at(hidden_BxLxD, positions_BxM), table_WxE)

    def logits(self, hidden_BxMxD: jax.Array, table_WxE: jax.Array) -> jax.Array:
        """Returns float32 logits_BxMxW for states that are already gathered; see `__call__`."""
        hidden_BxMxE = self.transformed(hidden_BxMxD)
        table_WxE = self.decoder_table(table_WxE)
        logits_BxMxW = vocabulary_logits(hidden_BxMxE, table_WxE, self.decoder_bias())
        return nn.with_logical_constraint(logits_BxMxW, ("batch", None, "activation_vocab"))

    def transformed(self, hidden_BxMxD: jax.Array) -> jax.Array:
        """Returns the input of the decoder, hidden_BxMxE."""
        hidden_BxMxD = nn.with_logical_constraint(hidden_BxMxD, ("batch", None, None))
        return super().__call__(hidden_BxMxD) if self.config.head_transform else hidden_BxMxD

    def decoder_table(self, table_WxE: jax.Array) -> jax.Array:
        """Returns the decoder's table in `config.dtype`: the word embeddings or its own."""
        c = self.config
        if c.tied_decoder:
            return table_WxE
        # Gathered as the word embeddings are; see `BertEmbeddings`.
        return nn.with_logical_constraint(self.output_embeddings.astype(c.dtype), ("vocab", None))

    def decoder_bias(self) -> jax.Array:
        """Returns bias_W, which masks the ids that only pad the vocabulary."""
        has_bias = "decoder" not in self.config.biasless
        return vocabulary_bias(self.config, self.output_bias if has_bias else 0.0)


def vocabulary_bias(config: BertConfig, bias_W: jax.typing.ArrayLike = 0.0) -> jax.Array:
    """Masks the ids that only pad the vocabulary in a bias; returns bias_W."""
    # Masking the bias costs nothing; masking the logits would touch millions of numbers.
    is_token_W = jnp.arange(config.padded_vocab_size) < config.vocab_size
    return jnp.where(is_token_W, bias_W, NO_PROBABILITY)


class SpanBoundaryHead(nn.Module):
    """Predicts each token of a span from its position in the span and the states on both sides.

    This is SpanBERT's boundary objective (Joshi et al. 2020, section 3.2): a layer on both states
    and a position embedding, then a language-model head of its own.
    """

    # --pair-positional-embedding-size in SpanBERT's pre-training command.
    POSITION_SIZE: ClassVar[int] = 200

    config: BertConfig

    def setup(self):
        c = self.config
        self.position_embeddings = self.param(
            "position_embeddings",
            weight_init(c, None, None),
            (MAX_SPAN_TARGETS, self.POSITION_SIZE),
        )
        # The input is 2 D + 200 wide, which is a multiple of few mesh sizes.
        self.transform = Projection(c, c.hidden_size, (None, "pooled"))
        self.layer_norm = LayerNorm(c)
        self.decoder = LanguageModelHead(c)

    def __call__(
        self,
        hidden_BxLxD: jax.Array,
        left_BxM: jax.Array,
        right_BxM: jax.Array,
        offsets_BxM: jax.Array,
        table_WxE: jax.Array,
    ) -> jax.Array:
        """Returns float32 logits_BxMxW.

        Args:
          left_BxM, right_BxM: int32 positions of the tokens beside each prediction's span.
          offsets_BxM: int32 positions of the predictions in their spans, below MAX_SPAN_TARGETS.
        """
        hidden_BxLxD = nn.with_logical_constraint(hidden_BxLxD, ("batch", None, None))
        offsets_BxMxO = jax.nn.one_hot(offsets_BxM, MAX_SPAN_TARGETS)
        offsets_BxMxE = jnp.matmul(offsets_BxMxO, self.position_embeddings, precision="highest")
        states = (states_at(hidden_BxLxD, left_BxM), states_at(hidden_BxLxD, right_BxM))
        x = jnp.concatenate([*states, offsets_BxMxE.astype(hidden_BxLxD.dtype)], axis=-1)
        x = self.layer_norm(ACTIVATIONS[self.config.hidden_act](self.transform(x)))
        return self.decoder.logits(x, table_WxE)


def states_at(hidden_BxLxD: jax.Array, positions_BxM: jax.Array) -> jax.Array:
    """Returns the states at some positions, hidden_BxMxD."""
    return jnp.take_along_axis(hidden_BxLxD, positions_BxM[:, :, None], axis=1)


class OutputLayer(nn.Module):
    """Computes the logits of a few classes: next sentence, labels, the ends of spans."""

    config: BertConfig
    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns float32 [..., features] for x [..., D]."""
        # These few numbers are always computed in float32.
        config = dataclasses.replace(self.config, dtype=jnp.float32, biases=True)
        logits = Projection(config, self.features, ("embed", "classes"), name="dense")(x)
        return nn.with_logical_constraint(logits, ("batch",) + (None,) * (x.ndim - 1))


class ReplacedTokenHead(nn.Module):
    """Two layers that predict for every token whether it is replaced (Clark et al. 2020)."""

    config: BertConfig

    def setup(self):
        self.transform = Projection(self.config, self.config.hidden_size, ("embed", "pooled"))
        self.output = OutputLayer(self.config, 1)

    def __call__(self, hidden_BxLxD: jax.Array) -> jax.Array:
        """Returns float32 logits_BxL, above 0 where a token looks replaced."""
        hidden_BxLxD = ACTIVATIONS[self.config.hidden_act](self.transform(hidden_BxLxD))
        return self.output(hidden_BxLxD)[..., 0]
