"""Denoising, BART's objective (Lewis et al. 2020, arXiv:1910.13461, section 2)."""

import dataclasses

import jax.numpy as jnp

from bert_jax.base.batch import DENOISING_FIELDS
from bert_jax.base.errors import UserError
from bert_jax.models.heads import vocabulary_bias
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
