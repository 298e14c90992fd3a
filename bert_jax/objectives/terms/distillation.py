"""Knowledge distillation: terms that compare a student with its teacher (DistilBERT)."""

import dataclasses

import jax.numpy as jnp

from bert_jax.base.batch import MASKED_LM_FIELDS
from bert_jax.models.heads import LanguageModelHead
from bert_jax.objectives.cross_entropy import decoder_inputs, sliced_divergence
from bert_jax.objectives.language_model import language_model_head_flops, token_sums
from bert_jax.objectives.term import Metric, Term, example_weights, loss_and_accuracy, token_weights


@dataclasses.dataclass(frozen=True)
class SoftTargets(Term):
    """Predicts the teacher's distribution over the vocabulary at every real position.

    The loss is the mean of T^2 * KL(teacher | student), where T, the temperature, divides the
    logits of both (Hinton et al. 2015, arXiv:1503.02531; `Distiller.step` of transformers'
    distillation project). In evaluation the term also scores the teacher at the masked positions.
    """

    temperature: float = 2.0

    name = "soft_targets"
    label = "soft targets"
    fields = MASKED_LM_FIELDS
    metrics = (
        Metric("soft_targets_loss", "soft-target loss (nats)", "loss", in_progress=True),
        Metric("soft_targets_accuracy", "agreement with the teacher", "accuracy", in_progress=True),
        Metric("teacher_mlm_loss", "teacher's masked-LM loss (nats)", "loss", in_training=False),
        Metric(
            "teacher_mlm_accuracy", "teacher's masked-LM accuracy", "accuracy", in_training=False
        ),
    )
    needs_teacher = True

    def heads(self, config):
        return {"mlm": LanguageModelHead(config)}

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        """Returns `DecoderInputs` of all positions, and logits_BxMxW of the masked ones."""
        inputs = decoder_inputs(model, hidden_BxLxD)
        return inputs, model.mlm(hidden_BxLxD, batch["masked_lm_positions"], inputs.table_WxE)

    def total(self, batch):
        return jnp.sum(batch["attention_mask"])

    def sums(self, outputs, batch, teacher=None):
        weights_BxL = token_weights(batch)
        divergence, same = sliced_divergence(outputs[0], teacher[0], weights_BxL, self.temperature)
        loss = self.temperature**2 * divergence
        weights_BxM = batch["masked_lm_weights"] * example_weights(batch)[:, None]
        teacher_sums = token_sums(teacher[1], batch["masked_lm_ids"], weights_BxM)
        return loss_and_accuracy(self.name, loss, same, jnp.sum(weights_BxL)) | loss_and_accuracy(
            "teacher_mlm", *teacher_sums, jnp.sum(weights_BxM)
        )

    def head_flops(self, config, length, num_predictions):
        return length * language_model_head_flops(config)


@dataclasses.dataclass(frozen=True)
class HiddenCosine(Term):
    """Aligns the last hidden state of each real token with the teacher's.

    The loss is the mean of 1 - cos. Both models must have the same width.
    """

    name = "hidden_cosine"
    label = "hidden cosine"
    metrics = (Metric("hidden_cosine_loss", "distance of the last states (1 - cos)", "distance"),)
    needs_teacher = True
    needs_teacher_width = True

    def heads(self, config):
        return {}

    def outputs(self, model, hidden_BxLxD, pooled_BxD, batch):
        """Returns hidden_BxLxD."""
        return hidden_BxLxD

    def total(self, batch):
        return jnp.sum(batch["attention_mask"])

    def sums(self, hidden_BxLxD, batch, teacher=None):
        weights_BxL = token_weights(batch)
        ours_BxLxD, theirs_BxLxD = (x.astype(jnp.float32) for x in (hidden_BxLxD, teacher))
        # As in torch.nn.CosineEmbeddingLoss.
        squares_BxL = (jnp.sum(ours_BxLxD**2, -1) + 1e-12) * (jnp.sum(theirs_BxLxD**2, -1) + 1e-12)
        cosines_BxL = jnp.sum(ours_BxLxD * theirs_BxLxD, axis=-1) / jnp.sqrt(squares_BxL)
        loss = jnp.sum(weights_BxL * (1 - cosines_BxL))
        return {"hidden_cosine_loss": (loss, jnp.sum(weights_BxL))}

    def head_flops(self, config, length, num_predictions):
        return 0
