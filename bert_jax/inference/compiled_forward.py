"""The compiled forward passes of inference: from padded token ids to features and predictions."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models import BertConfig, BertEncoder, PreTrainingModel
from bert_jax.objectives.term import Term


class Inputs(NamedTuple):
    """A padded batch, as arrays of the host.

    Attributes:
      input_ids_BxL: int32 token ids.
      token_type_ids_BxL: int32, 1 in segment B.
      lengths_B: int32, the number of tokens that are not padding.
    """

    input_ids_BxL: np.ndarray
    token_type_ids_BxL: np.ndarray
    lengths_B: np.ndarray

    def fields(self) -> dict[str, jax.Array]:
        """Returns the batch fields that every model reads."""
        positions_L = jnp.arange(self.input_ids_BxL.shape[1])
        return {
            "input_ids": self.input_ids_BxL,
            "token_type_ids": self.token_type_ids_BxL,
            "attention_mask": (positions_L < self.lengths_B[:, None]).astype(jnp.int32),
        }


class CompiledForward:
    """A model's parameters on the device, and its compiled forward passes.

    Each method is compiled once for every shape of its inputs and computes no more than its
    result needs: features of layer 3 run three layers. Heads may be absent from the parameters.
    """

    def __init__(self, config: BertConfig, params: Any):
        self.config = config
        self.params = jax.device_put(params)

    def features(self, inputs: Inputs, layers: tuple[int, ...], pooling: str) -> jax.Array:
        """Returns float32 hidden states, [B, K, D], or [B, K, L, D] if pooling is "tokens".

        Args:
          inputs: The batch.
          layers: K layers; 0 is the embeddings' output, n that of the n-th block.
          pooling: "cls" for the first token's state, "mean" for the mean over all tokens with
            [CLS] and [SEP], or "tokens" for every token's.
        """
        return _features(self.config, layers, pooling, self.params["bert"], inputs)

    def attention(self, inputs: Inputs) -> jax.Array:
        """Returns the attention probabilities of all N layers, float32 [B, N, A, L, L]."""
        return _attention(self.config, self.params["bert"], inputs)

    def log_probs(
        self, term: Term, inputs: Inputs, fields: Mapping[str, np.ndarray] | None = None
    ) -> jax.Array:
        """Returns the log-probabilities that a term's head predicts, float32 [..., classes].

        Args:
          term: The term, whose head returns logits.
          inputs: The batch.
          fields: The batch fields that the head reads beside the inputs.
        """
        return _log_probs(self.config, term, self.params, inputs, dict(fields or {}))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _features(config, layers, pooling, params, inputs):
    states, _ = _hidden_states(config, params, inputs)
    hidden_BxKxLxD = jnp.stack([states[layer] for layer in layers], axis=1)
    if pooling == "cls":
        return hidden_BxKxLxD[:, :, 0]
    if pooling == "tokens":
        return hidden_BxKxLxD
    mask_Bx1xLx1 = inputs.fields()["attention_mask"][:, None, :, None] > 0
    sums_BxKxD = jnp.sum(jnp.where(mask_Bx1xLx1, hidden_BxKxLxD, 0), axis=2)
    return sums_BxKxD / jnp.maximum(inputs.lengths_B, 1)[:, None, None]


@partial(jax.jit, static_argnums=0)
def _attention(config, params, inputs):
    _, sown = _hidden_states(config, params, inputs)
    layers = [sown["encoder"][f"layer_{i}"] for i in range(config.num_hidden_layers)]
    return jnp.stack([layer["attention"]["probabilities"][0] for layer in layers], axis=1)


@partial(jax.jit, static_argnums=(0, 1))
def _log_probs(config, term, params, inputs, fields):
    model = PreTrainingModel(config, (term,))
    batch = inputs.fields() | fields
    logits = model.apply({"params": params}, batch, deterministic=True)[term.name]
    # The entries that pad the vocabulary have no probability.
    return jax.nn.log_softmax(logits)


def _hidden_states(config, params, inputs):
    """Returns the states of all layers, and what the encoder sows as intermediates."""
    encoder = BertEncoder(config, has_pooler=False)
    states, variables = encoder.apply(
        {"params": params},
        *inputs.fields().values(),
        deterministic=True,
        method="hidden_states",
        mutable=["intermediates"],
    )
    return states, variables["intermediates"]
