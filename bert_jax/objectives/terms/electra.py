"""ELECTRA's two terms, generator and discriminator (Clark et al. 2020, arXiv:2003.10555)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import entr

from bert_jax.base.batch import MASKED_LM_FIELDS
from bert_jax.models.heads import ReplacedTokenHead
from bert_jax.models.pretraining_model import GeneratorModel
from bert_jax.objectives.language_model import MaskedTokenPrediction, language_model_metrics
from bert_jax.objectives.term import (
    Metric,
    Term,
    loss_and_accuracy,
    original_ids,
    token_weights,
    with_tokens,
)


@dataclasses.dataclass(frozen=True)
class Generator(MaskedTokenPrediction):
    """Predicts the chosen tokens with a small model of its own (Clark et al. 2020, section 3).

    The generator reads the corrupted row. The main model, the discriminator, then reads the
    original row with a sample of the generator at each chosen position. Samples have no
    gradient.
    """

    name = "mlm"
    label = "generator"
    metrics = language_model_metrics("mlm", "generator's masked-LM")

    def heads(self, config):
        return {"generator": GeneratorModel(config.generator)}

    def prepare(self, model, batch, *, deterministic):
        """Puts samples into `input_ids`, and adds `generator_logits` [B, M, W]."""
        embeddings = model.bert.embeddings
        cls_positions_BxP = batch.get("cls_positions")
        sequences_per_row = 1 if cls_positions_BxP is None else cls_positions_BxP.shape[1]
        logits_BxMxW = model.generator(
            embeddings(
                batch["input_ids"],
                batch["token_type_ids"],
                deterministic,
                batch.get("position_ids"),
                batch["attention_mask"],
                sequences_per_row,
            ),
            batch["attention_mask"],
            batch["masked_lm_positions"],
            embeddings.table_WxE,
            deterministic=deterministic,
            sequences_per_row=sequences_per_row,
        )
        ids_BxL = with_tokens(
            batch["input_ids"],
            batch["masked_lm_positions"],
            self.samples(model, logits_BxMxW, batch),
            batch["masked_lm_weights"] > 0,
        )
        return {**batch, "input_ids": ids_BxL, "generator_logits": logits_BxMxW}

    def samples(self, model, logits_BxMxW, batch):
        """Draws a token for each position, int32 [B, M], always below `vocab_size`."""
        key = model.make_rng("sample")
        return jax.random.categorical(key, logits_BxMxW).astype(jnp.int32)

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        """Returns logits_BxMxW, float32; W is the padded vocabulary."""
        return batch["generator_logits"]

    def encoders(self, config):
        return (config.generator,)

    def head_flops(self, config, length, num_predictions):
        width, embedding_width = config.generator.hidden_size, config.embedding_width
        return 2 * num_predictions * embedding_width * (width + config.vocab_size)


@dataclasses.dataclass(frozen=True)
class ReplacedToken(Term):
    """Predicts for every real token, [CLS] and [SEP] too, whether it is the original one.

    The term `generator` replaces tokens. Without this term, the tokens that the corruption changed
    count as replaced. The loss is the mean over all real tokens of the batch.
    """

    name = "rtd"
    label = "replaced-token detection"
    fields = MASKED_LM_FIELDS
    metrics = (
        Metric(
            "rtd_loss",
            "replaced-token loss (nats)",
            "loss",
            baseline="constant_rtd_loss",
            baseline_label="the frequency of replaced tokens",
        ),
        Metric(
            "rtd_accuracy",
            "replaced-token accuracy",
            "accuracy",
            baseline="all_real_rtd_accuracy",
            baseline_label="no token is replaced",
            in_progress=True,
        ),
        Metric(
            "rtd_precision",
            "replaced-token precision",
            "accuracy",
            baseline="all_replaced_rtd_precision",
            baseline_label="every token is replaced",
            in_training=False,
        ),
        Metric("rtd_recall", "replaced-token recall", "accuracy", in_training=False),
    )

    def heads(self, config):
        return {"rtd": ReplacedTokenHead(config)}

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        """Returns logits_BxL, float32, and is_replaced_BxL, bool.

        A sample that equals the original token is not replaced.
        """
        return model.rtd(hidden_BxLxD), batch["input_ids"] != original_ids(batch)

    def total(self, batch):
        return jnp.sum(batch["attention_mask"])

    def sums(self, outputs, batch, teacher=None):
        logits_BxL, is_replaced_BxL = outputs
        weights_BxL = token_weights(batch)
        losses_BxL = jax.nn.softplus(jnp.where(is_replaced_BxL, -logits_BxL, logits_BxL))
        # A probability of more than 1/2, as in google-research/electra.
        is_marked_BxL = logits_BxL > 0
        loss = jnp.sum(weights_BxL * losses_BxL)
        correct = jnp.sum(weights_BxL * (is_marked_BxL == is_replaced_BxL))
        found = jnp.sum(weights_BxL * (is_marked_BxL & is_replaced_BxL))
        return loss_and_accuracy("rtd", loss, correct, jnp.sum(weights_BxL)) | {
            "rtd_precision": (found, jnp.sum(weights_BxL * is_marked_BxL)),
            "rtd_recall": (found, jnp.sum(weights_BxL * is_replaced_BxL)),
        }

    def results(self, sums):
        (_, num_replaced), (_, num_tokens) = sums["rtd_recall"], sums["rtd_loss"]
        replaced = num_replaced / num_tokens
        return super().results(sums) | {
            "constant_rtd_loss": float(np.sum(entr([replaced, 1 - replaced]))),
            "all_real_rtd_accuracy": 1 - replaced,
            "all_replaced_rtd_precision": replaced,
        }

    def head_flops(self, config, length, num_predictions):
        # The product for one output is negligible.
        return 2 * length * config.hidden_size**2
