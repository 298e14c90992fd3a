"""The model's hyperparameters, named as in BERT's own bert_config.json."""

import dataclasses
from typing import Any

import jax.numpy as jnp

# The number of rows of the word embeddings and of the decoder's bias is a multiple of this, the
# lane width of a TPU, which divides evenly over any usual `model` axis. It does not depend on the
# mesh, so a checkpoint fits every mesh.
VOCAB_MULTIPLE = 128


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Shape and arithmetic of a BERT; `bert_jax.config` explains each key."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    pooler_dropout_prob: float = 0.0
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    causal: bool = False
    embedding_size: int = 0
    layer_groups: int = 0
    attention_output_dropout_prob: float = -1.0
    pooler_act: str = "tanh"
    generator_size: float = 0.0
    sinusoidal_positions: float = 0.0
    dtype: Any = jnp.float32
    scan_layers: bool = False
    remat: str = "none"
    # Has an effect on TPUs only.
    fused_attention: bool = False

    @property
    def head_depth(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def embedding_width(self) -> int:
        """The width of the embedding tables (E)."""
        return self.embedding_size or self.hidden_size

    @property
    def num_groups(self) -> int:
        """The number of groups of blocks (G). The blocks of a group share their parameters."""
        return self.layer_groups or self.num_hidden_layers

    def group_of(self, layer: int) -> int:
        """Returns the group of a block: floor(i G / N), as in ALBERT's modeling.py."""
        return layer * self.num_groups // self.num_hidden_layers

    @property
    def generator(self) -> "BertConfig":
        """ELECTRA's generator: as deep, `generator_size` times as wide, with the same embeddings.

        The shape follows `get_generator_config` in google-research/electra's run_pretraining.py.
        """
        width = round(self.hidden_size * self.generator_size)
        return dataclasses.replace(
            self,
            hidden_size=width,
            num_attention_heads=max(1, width // 64),
            intermediate_size=4 * width,
            embedding_size=self.embedding_width,
            generator_size=0.0,
        )

    @property
    def padded_vocab_size(self) -> int:
        """The number of rows of the word embeddings: `vocab_size` rounded up to a multiple of 128.

        The rows beyond the vocabulary are zero and stay zero: they get no gradient.
        """
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
