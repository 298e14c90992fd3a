"""The compiled forward passes of inference: from padded token ids to features and predictions.

Each function is compiled once for every shape of its inputs and computes no more than its result
needs: features of layer 3 run three layers. Heads may be absent from the parameters.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models import BertConfig
from bert_jax.models.bert import BertEncoder
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.objective import apply
from bert_jax.objectives.term import Term
from bert_jax.objectives.terms.electra import ReplacedToken


class Inputs(NamedTuple):
    """A padded batch.

    Attributes:
      input_ids_BxL: int32 token ids.
      token_type_ids_BxL: int32, 1 in segment B.
      lengths_B: int32, the number of tokens that are not padding.
    """

    input_ids_BxL: np.ndarray
    token_type_ids_BxL: np.ndarray
    lengths_B: np.ndarray

    def fields(self) -> dict[str, jax.Array]:
        """Makes the batch fields that every model reads."""
        positions_L = jnp.arange(self.input_ids_BxL.shape[1])
        return {
            "input_ids": self.input_ids_BxL,
            "token_type_ids": self.token_type_ids_BxL,
            "attention_mask": (positions_L < self.lengths_B[:, None]).astype(jnp.int32),
        }


@partial(jax.jit, static_argnames=("config", "layers", "pooling"))
def features(
    config: BertConfig, params: Any, inputs: Inputs, layers: tuple[int, ...], pooling: str
) -> jax.Array:
    """Computes float32 hidden states, [B, K, D], or [B, K, L, D] if pooling is "tokens".

    Args:
      layers: K layers; 0 is the embeddings' output, n the output of the n-th block.
      pooling: "cls" for the first token's state, "mean" for the mean over all tokens with
        [CLS] and [SEP], or "tokens" for every token's state.
    """
    states, _ = _hidden_states(config, params, inputs)
    hidden_BxKxLxD = jnp.stack([states[layer] for layer in layers], axis=1)
    if pooling == "cls":
        return hidden_BxKxLxD[:, :, 0]
    if pooling == "tokens":
        return hidden_BxKxLxD
    mask_Bx1xLx1 = inputs.fields()["attention_mask"][:, None, :, None] > 0
    sums_BxKxD = jnp.sum(jnp.where(mask_Bx1xLx1, hidden_BxKxLxD, 0), axis=2)
    return sums_BxKxD / jnp.maximum(inputs.lengths_B, 1)[:, None, None]


@partial(jax.jit, static_argnames="config")
def attention(config: BertConfig, params: Any, inputs: Inputs) -> jax.Array:
    """Computes the attention probabilities of all N layers, float32 [B, N, A, L, L]."""
    _, sown = _hidden_states(config, params, inputs)
    groups = [sown["encoder"][f"layer_{group}"] for group in range(config.num_groups)]
    # A group sows once for each of its blocks.
    probabilities = [p for group in groups for p in group["attention"]["probabilities"]]
    return jnp.stack(probabilities, axis=1)


@partial(jax.jit, static_argnames=("config", "term"))
def log_probs(
    config: BertConfig, params: Any, inputs: Inputs, term: Term, **fields: np.ndarray
) -> jax.Array:
    """Computes the log-probabilities that a term's head predicts, float32 [..., classes].

    Args:
      term: The term, whose head returns logits.
      **fields: The batch fields that the head reads in addition to the inputs.
    """
    model = PreTrainingModel(config, (term,))
    batch = inputs.fields() | fields
    logits = apply(model, params, batch)[term.name]
    # The tokens that pad the vocabulary have no probability.
    return jax.nn.log_softmax(logits)


@partial(jax.jit, static_argnames="config")
def replaced(config: BertConfig, params: Any, inputs: Inputs) -> jax.Array:
    """Computes the probability that each token is replaced, float32 [B, L] (ELECTRA)."""

    def run(model: PreTrainingModel) -> jax.Array:
        hidden_BxLxD, _ = model.bert(*inputs.fields().values(), deterministic=True)
        return jax.nn.sigmoid(model.rtd(hidden_BxLxD))

    model = PreTrainingModel(config, (ReplacedToken(),))
    return model.apply({"params": params}, method=run)


def _hidden_states(config, params, inputs):
    """Returns the states of all layers, and the intermediates that the encoder sows."""
    states, variables = BertEncoder(config, has_pooler=False).apply(
        {"params": params["bert"]},
        *inputs.fields().values(),
        deterministic=True,
        method="hidden_states",
        mutable=["intermediates"],
    )
    return states, variables["intermediates"]
