"""Checks of packed rows: `config.data.max_pairs_per_row` above 1."""

from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.config.predictions import packed_predictions, rated_stages


def check_packing(config: ConfigDict) -> None:
    """Refuses packed rows that a pre-training config cannot have.

    Raises:
      UserError: The message names the keys.
    """
    data, problem = config.data, ""
    pairs = data.max_pairs_per_row
    if pairs == 1:
        return
    if config.model.causal:
        problem = "config.model.causal is True, and only models that read both ways are packed"
    elif data.corruption == "denoising":
        problem = "config.data.corruption=denoising has a target for each row"
    elif data.rows == "full_sentences":
        problem = "config.data.rows=full_sentences leaves no room for another segment"
    if problem:
        other = " and choose other config.data.rows" * (data.rows == "fitted_documents")
        raise UserError(
            f"config.data.max_pairs_per_row is {pairs}, but {problem}; set it to 1{other}"
        )
    for i, stage, rate, _ in rated_stages(config):
        length, limit = stage.max_seq_length, stage.max_predictions_per_seq
        needed = packed_predictions(length, rate, pairs)
        if 0 < limit < needed and data.corruption != "none":
            raise UserError(
                f"config.train.stages[{i}].max_predictions_per_seq is {limit}, but {pairs} pairs "
                f"in a row of {length} tokens (config.data.max_pairs_per_row) may need {needed}; "
                f"set it to {needed}, or to 0"
            )
