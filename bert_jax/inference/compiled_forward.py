"""What is compiled: from padded token ids to features, logits and attention."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models import BertConfig, PreTrainingModel
from bert_jax.objectives.terms import make_terms


class Inputs(NamedTuple):
    """A padded batch, as arrays of the host.

    Attributes:
      input_ids_BxL: int32 token ids.
      token_type_ids_BxL: int32, 1 in segment B.
      lengths_B: int32, tokens that are no padding.
    """

    input_ids_BxL: np.ndarray
    token_type_ids_BxL: np.ndarray
    lengths_B: np.ndarray


class Programs:
    """A model with its parameters on the device; heads that these lack are never touched.

    Each program is compiled once for every shape of its inputs, and computes no more than
    its result needs: features of layer 3 run three layers.
    """

    def __init__(self, config: BertConfig, params: Any):
        self._model = PreTrainingModel(config, make_terms())
        self.params = jax.device_put(params)
        self._features_program = jax.jit(self._features, static_argnums=(2, 3))
        self._mlm_program = jax.jit(self._mlm_log_probs)
        self._next_sentence_program = jax.jit(self._next_sentence_log_probs)
        self._attention_program = jax.jit(self._attention)

    def features(self, inputs: Inputs, layers: tuple[int, ...], pooling: str) -> jax.Array:
        """Hidden states, float32: [B, K, D], or [B, K, L, D] when pooling is "tokens".

        Args:
          inputs: The batch.
          layers: K of them; 0 is the embeddings' output, n that of the n-th block.
          pooling: "cls", the first token's; "mean", that of all tokens, [CLS] and [SEP]
            among them; or "tokens", every one's.
        """
        return self._features_program(self.params, inputs, layers, pooling)

    def mlm_log_probs(self, inputs: Inputs, positions_BxM: np.ndarray) -> jax.Array:
        """log P(token) at positions (int32), float32 [B, M, V]."""
        return self._mlm_program(self.params, inputs, positions_BxM)

    def next_sentence_log_probs(self, inputs: Inputs) -> jax.Array:
        """log P of "is next" and "random", float32 [B, 2]."""
        return self._next_sentence_program(self.params, inputs)

    def attention(self, inputs: Inputs) -> jax.Array:
        """Attention probabilities of all N layers, float32 [B, N, A, L, L]."""
        return self._attention_program(self.params, inputs)

    def _features(self, params, inputs, layers, pooling):
        states, _ = self._encode(params, inputs)
        hidden_BxKxLxD = jnp.stack([states[layer] for layer in layers], axis=1)
        if pooling == "cls":
            return hidden_BxKxLxD[:, :, 0]
        if pooling == "tokens":
            return hidden_BxKxLxD
        mask_Bx1xLx1 = _mask(inputs)[:, None, :, None]
        sums_BxKxD = jnp.sum(jnp.where(mask_Bx1xLx1, hidden_BxKxLxD, 0), axis=2)
        return sums_BxKxD / jnp.maximum(inputs.lengths_B, 1)[:, None, None]

    def _mlm_log_probs(self, params, inputs, positions_BxM):
        (*_, hidden_BxLxD), _ = self._encode(params, inputs)

        def head(model):
            return model.mlm(hidden_BxLxD, positions_BxM, model.bert.decode)

        logits_BxMxW = self._model.apply({"params": params}, method=head)
        return jax.nn.log_softmax(logits_BxMxW[..., : self._model.config.vocab_size])

    def _next_sentence_log_probs(self, params, inputs):
        (*_, hidden_BxLxD), _ = self._encode(params, inputs)

        def head(model):
            return model.nsp(model.bert.pooler(hidden_BxLxD, _mask(inputs)))

        return jax.nn.log_softmax(self._model.apply({"params": params}, method=head))

    def _attention(self, params, inputs):
        _, kept = self._encode(params, inputs)
        encoder = kept["bert"]["encoder"]
        layers = range(self._model.config.num_hidden_layers)
        kept = [encoder[f"layer_{i}"]["attention"]["probabilities"][0] for i in layers]
        return jnp.stack(kept, axis=1)

    def _encode(self, params, inputs):
        """The hidden states of all layers, and what the encoder keeps for who asks."""

        def encoder(model):
            ids_and_types = inputs.input_ids_BxL, inputs.token_type_ids_BxL
            return model.bert.hidden_states(*ids_and_types, _mask(inputs), deterministic=True)

        states, kept = self._model.apply(
            {"params": params}, method=encoder, mutable=["intermediates"]
        )
        return states, kept["intermediates"]


def _mask(inputs: Inputs) -> jax.Array:
    """bool [B, L]: where the tokens are."""
    return jnp.arange(inputs.input_ids_BxL.shape[1]) < inputs.lengths_B[:, None]
