"""Builds the objective of a pre-training config."""

from ml_collections import ConfigDict

from bert_jax.base.batch import BatchFields, shared_row_fields
from bert_jax.base.errors import UserError
from bert_jax.batches.stream import batch_fields
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.weighted import WeightedTerms


def declared_fields(config: ConfigDict) -> BatchFields:
    """Returns the fields of a training batch, which the rows and the corruption declare."""
    data = config.data
    return batch_fields(data.rows, data.corruption, data.pair_labels, data.max_pairs_per_row)


def make_objective(config: ConfigDict) -> WeightedTerms:
    """Builds the objective of a config, without a teacher.

    Raises:
      UserError: A term is unknown, needs a batch field that the rows and the corruption of the
        config do not provide, or has nothing to predict in this model.
    """
    terms = make_terms(config.objective.terms, config.objective)
    objective = WeightedTerms(terms, tuple(config.objective.weights))
    provided, data = declared_fields(config), config.data
    for name, term in zip(config.objective.terms, objective.terms, strict=True):
        fields = term.fields if data.max_pairs_per_row == 1 else shared_row_fields(term.fields)
        if missing := [field for field, kind in fields.items() if provided.get(field) != kind]:
            labels = f" with config.data.pair_labels={data.pair_labels}"
            raise UserError(
                f"config.objective.terms has {name}, which needs {min(missing)} in each batch; "
                f"config.data.rows={data.rows}{labels if data.rows == 'pairs' else ''} and "
                f"config.data.corruption={data.corruption} do not provide it"
            )
        if term.is_left_to_right and not config.model.causal:
            raise UserError(
                f"config.objective.terms has {name}, but config.model.causal is False, so that "
                "each position sees the token it predicts; set it to True"
            )
        if term.is_left_to_right and "masked_lm_positions" in provided:
            raise UserError(
                f"config.objective.terms has {name}, but config.data.corruption={data.corruption} "
                "replaces the tokens it predicts; set it to none"
            )
    layers = config.model.num_decoder_layers
    if any(term.needs_decoder for term in objective.terms) != (layers > 0):
        raise UserError(
            f"config.model.num_decoder_layers is {layers}, but config.objective.terms is "
            f"{config.objective.terms!r}; a model with a decoder is trained by the term denoising, "
            "which no other model has"
        )
    return objective
