"""Denoising, BART's objective (Lewis et al. 2020, arXiv:1910.13461, section 2)."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.base.batch import DENOISING_FIELDS
from bert_jax.base.errors import UserError
from bert_jax.models import BertConfig
from bert_jax.models.bert_encoder import BertEncoder
from bert_jax.models.heads import vocabulary_bias
from bert_jax.models.input_embeddings import vocabulary_logits
from bert_jax.objectives.cross_entropy import DecoderInputs, TextPrediction
from bert_jax.objectives.flops import decoder_flops
from bert_jax.objectives.language_model import language_model_metrics
from bert_jax.objectives.term import example_weights


@dataclasses.dataclass(frozen=True)
class OriginalText(TextPrediction):
    """Predicts each token of the original text, from the tokens before it and the corrupted text.

    The encoder reads the corrupted text; the model must have a decoder. The loss is the mean over
    all tokens of the target, `<s>` and `</s>` too. The output has no bias, as in fairseq.
    """

    name = "denoising"
    label = "denoising"
    fields = DENOISING_FIELDS
    metrics = language_model_metrics("denoising", "denoising")
    needs_decoder = True

    def heads(self, config):
        """Returns none: the decoder is a part of the model."""
        # A stored config or config.json may say so.
        if not config.num_decoder_layers:
            raise UserError("config.model.num_decoder_layers is 0; the term denoising needs more")
        return {}

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        """Returns `DecoderInputs`, from which the loss computes a few logits at a time."""
        table_WxE = model.bert.embeddings.table_WxE
        return DecoderInputs(batch["decoder_states"], table_WxE, vocabulary_bias(model.config))

    def total(self, batch):
        return jnp.sum(batch["decoder_attention_mask"])

    def targets(self, batch):
        return batch["labels"], batch["decoder_attention_mask"] * example_weights(batch)[:, None]

    def head_flops(self, config, length, num_predictions):
        return decoder_flops(config, length, length)


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
