"""RetroMAE's term (Xiao et al. 2022, arXiv:2205.12035, section 3)."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.base.batch import MASKED_LM_FIELDS
from bert_jax.base.errors import UserError
from bert_jax.models.dropout import keeps, mask_keys
from bert_jax.models.heads import LanguageModelHead
from bert_jax.models.retromae_decoder import RetroMaeDecoder
from bert_jax.objectives.cross_entropy import TextPrediction, decoder_inputs
from bert_jax.objectives.flops import block_flops
from bert_jax.objectives.language_model import (
    DENOMINATOR_EPSILON,
    language_model_head_flops,
    language_model_metrics,
)
from bert_jax.objectives.term import example_weights, original_ids

# The fraction of the other tokens of the text that a position does not see.
HIDDEN_FRACTION = 0.5


@dataclasses.dataclass(frozen=True)
class RetroMAE(TextPrediction):
    """Predicts all tokens of a text from the state of [CLS] and half of the other tokens.

    A decoder of one block does so, which is not needed afterwards: [CLS] must hold the text. It has
    the head of `masked_lm`. The loss is the mean over all tokens but [CLS] and the last [SEP].
    """

    name = "retromae"
    label = "RetroMAE"
    fields = MASKED_LM_FIELDS
    metrics = language_model_metrics("retromae", "RetroMAE")

    def heads(self, config):
        if config.rope_theta or config.embedding_width != config.hidden_size:
            raise UserError(
                f"config.model.rope_theta is {config.rope_theta} and config.model.embedding_size "
                f"is {config.embedding_size}: the term retromae needs position embeddings of the "
                "width hidden_size"
            )
        return {"mlm": LanguageModelHead(config), "retromae": RetroMaeDecoder(config)}

    def prepare(self, model, batch, *, deterministic):
        """Adds the decoder's `retromae_embeddings` [B, L, D] and `retromae_visible` [B, L, L]."""
        if "cls_positions" in batch:
            raise UserError(
                "the term retromae reads one sequence a row: set config.data.max_pairs_per_row=1"
            )
        embeddings = model.bert.embeddings(
            original_ids(batch),
            batch["token_type_ids"],
            deterministic,
            numbers_BxL=batch["attention_mask"],
        )
        return {
            **batch,
            "retromae_embeddings": embeddings,
            "retromae_visible": self.visible(model, batch),
        }

    def visible(self, model, batch):
        """Draws which tokens each position sees, bool [B, L, L].

        No position sees itself. Each other token of the text is hidden from it with the probability
        HIDDEN_FRACTION; [CLS] and the last [SEP] never are.
        """
        is_real_Bx1xL = batch["attention_mask"][:, None] > 0
        rows, length = batch["attention_mask"].shape
        keys = (key[:, None, None] for key in mask_keys(model.make_rng("sample"), (rows,)))
        index_LxL = jnp.arange(length**2).reshape(length, length)
        is_kept_BxLxL = keeps(index_LxL, tuple(keys), HIDDEN_FRACTION)
        is_kept_BxLxL |= text_weights(batch)[:, None] == 0
        return is_kept_BxLxL & is_real_Bx1xL & ~jnp.eye(length, dtype=bool)

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        """Returns `DecoderInputs`, from which the loss computes a few logits at a time."""
        length = hidden_BxLxD.shape[1]
        decoded_BxLxD = model.retromae(
            hidden_BxLxD[:, 0],
            batch["retromae_embeddings"],
            model.bert.embeddings.position_embeddings[:length],
            batch["retromae_visible"],
            # Only training has dropout.
            not model.has_rng("dropout"),
        )
        return decoder_inputs(model, decoded_BxLxD)

    def total(self, batch):
        return jnp.sum(text_weights(batch)) + DENOMINATOR_EPSILON

    def targets(self, batch):
        return original_ids(batch), text_weights(batch) * example_weights(batch)[:, None]

    def head_flops(self, config, length, num_predictions):
        return block_flops(config, length) + length * language_model_head_flops(config)


def text_weights(batch: dict[str, jax.Array]) -> jax.Array:
    """Returns 1 for each token but [CLS], the last [SEP] and padding, 0 for these: [B, L]."""
    mask_BxL = batch["attention_mask"]
    position_L = jnp.arange(mask_BxL.shape[1])
    last_Bx1 = jnp.sum(mask_BxL, axis=1, keepdims=True) - 1
    return ((position_L > 0) & (position_L < last_Bx1)).astype(jnp.float32)
