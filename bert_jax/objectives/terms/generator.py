"""The masked LM of ELECTRA's generator, whose samples replace the chosen tokens."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.models.generator import Generator as GeneratorModel
from bert_jax.objectives.language_model import MaskedTokenPrediction, language_model_metrics


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
        """Returns the batch with samples in `input_ids`, and with `generator_logits` [B, M, W]."""
        embeddings = model.bert.embeddings
        logits_BxMxW = model.generator(
            embeddings(batch["input_ids"], batch["token_type_ids"], deterministic),
            batch["attention_mask"],
            batch["masked_lm_positions"],
            embeddings.word_embeddings,
            deterministic=deterministic,
        )
        ids_BxL = _replaced(
            batch["input_ids"],
            batch["masked_lm_positions"],
            self.samples(model, logits_BxMxW, batch),
            batch["masked_lm_weights"] > 0,
        )
        return {**batch, "input_ids": ids_BxL, "generator_logits": logits_BxMxW}

    def samples(self, model, logits_BxMxW, batch):
        """Returns a token for each position, int32 [B, M], always below `vocab_size`."""
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


@jax.vmap
def _replaced(
    ids_L: jax.Array, positions_M: jax.Array, new_M: jax.Array, is_used_M: jax.Array
) -> jax.Array:
    """Puts new ids at some positions of each row; positions that are used are distinct."""
    change_M = jnp.where(is_used_M, new_M - ids_L[positions_M], 0)
    return ids_L.at[positions_M].add(change_M)
