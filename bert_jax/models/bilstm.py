"""The recurrent layers of the paper's feature-based approach (section 5.3)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.bert_config import BertConfig

# "a randomly initialized two-layer 768-dimensional BiLSTM before the classification layer"
NUM_LAYERS = 2


class BiLstm(nn.Module):
    """Two bidirectional LSTM layers with concatenated outputs.

    Kernels are initialized as in flax's LSTMs (LeCun's normal, recurrent ones orthogonal), not
    with BERT's initializer.

    Attributes:
      config: Defines the dtype of the computation.
      size: The number of units in each direction.
    """

    config: BertConfig
    size: int

    @nn.compact
    def __call__(self, states_BxLxE: jax.Array, attention_mask_BxL: jax.Array) -> jax.Array:
        """Returns [B, L, 2 * size]; the backward direction starts at the last real token."""
        lengths_B = jnp.sum(attention_mask_BxL.astype(jnp.int32), axis=1)
        for i in range(NUM_LAYERS):
            forward, backward = (
                nn.RNN(
                    nn.OptimizedLSTMCell(self.size, dtype=self.config.dtype, parent=None),
                    name=f"layer_{i}_{direction}",
                )
                for direction in ("forward", "backward")
            )
            both = nn.Bidirectional(forward, backward, name=f"layer_{i}")
            states_BxLxE = both(states_BxLxE, seq_lengths=lengths_B)
            states_BxLxE = nn.with_logical_constraint(states_BxLxE, ("batch", None, None))
        return states_BxLxE
