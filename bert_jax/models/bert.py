"""BERT: the encoder, and the encoder under its two pre-training heads."""

from typing import ClassVar

import flax.linen as nn
import flax.struct
import jax

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.embeddings import BertEmbeddings
from bert_jax.models.encoder import Encoder
from bert_jax.models.heads import MaskedLanguageModelHead, OutputLayer, Pooler


@flax.struct.dataclass
class PreTrainingOutput:
    """Logits of both heads, float32.

    Attributes:
      mlm_logits_BxMxW: Of the vocabulary, and of the entries that pad it to W, a multiple of
        128; those have no probability. Losses take these: V need not divide over a mesh.
      nsp_logits_Bx2: Of "is next" (0) and "random" (1).
      vocab_size: V.
    """

    mlm_logits_BxMxW: jax.Array
    nsp_logits_Bx2: jax.Array
    vocab_size: int = flax.struct.field(pytree_node=False)

    @property
    def mlm_logits_BxMxV(self) -> jax.Array:
        """Of the vocabulary alone."""
        return self.mlm_logits_BxMxW[..., : self.vocab_size]


class BertEncoder(nn.Module):
    """Embeddings, blocks and pooler: what every task builds on.

    Attributes:
      config: The model's hyperparameters.
      has_pooler: Without it there are none of its parameters either.
    """

    config: BertConfig
    has_pooler: bool = True

    def setup(self):
        self.embeddings = BertEmbeddings(self.config)
        self.encoder = Encoder(self.config)
        if self.has_pooler:
            self.pooler = Pooler(self.config)

    def __call__(
        self,
        input_ids_BxL: jax.Array,
        token_type_ids_BxL: jax.Array,
        attention_mask_BxL: jax.Array,
        *,
        deterministic: bool,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Encodes token ids.

        Args:
          input_ids_BxL: int32 token ids below `vocab_size`.
          token_type_ids_BxL: int32, 0 in segment A, 1 in segment B.
          attention_mask_BxL: int32, 1 at real tokens, 0 at padding.
          deterministic: True for evaluation: no dropout, no "dropout" rng needed.

        Returns:
          hidden_BxLxD and pooled_BxD (None without a pooler), in `config.dtype`.
        """
        hidden_BxLxD = self.embeddings(input_ids_BxL, token_type_ids_BxL, deterministic)
        hidden_BxLxD = self.encoder(hidden_BxLxD, attention_mask_BxL, deterministic)
        return hidden_BxLxD, self.pooler(hidden_BxLxD) if self.has_pooler else None

    def hidden_states(
        self,
        input_ids_BxL: jax.Array,
        token_type_ids_BxL: jax.Array,
        attention_mask_BxL: jax.Array,
        *,
        deterministic: bool,
    ) -> list[jax.Array]:
        """All hidden_BxLxD: the embeddings, then each block's output, the first block's first."""
        embedded_BxLxD = self.embeddings(input_ids_BxL, token_type_ids_BxL, deterministic)
        blocks = self.encoder(embedded_BxLxD, attention_mask_BxL, deterministic, all_layers=True)
        return [embedded_BxLxD, *blocks]

    def decode(self, hidden_BxMxD: jax.Array, bias_W: jax.Array) -> jax.Array:
        """The product with the (tied) word embeddings, float32 [B, M, W]."""
        return self.embeddings.logits(hidden_BxMxD, bias_W)


class BertForPreTraining(nn.Module):
    """BERT with the masked-LM and next-sentence heads (paper, section 3.1)."""

    # What of a batch the model is called with.
    INPUTS: ClassVar[tuple[str, ...]] = (
        "input_ids",
        "token_type_ids",
        "attention_mask",
        "masked_lm_positions",
    )

    config: BertConfig

    def setup(self):
        self.bert = BertEncoder(self.config)
        self.mlm = MaskedLanguageModelHead(self.config)
        # 0 is the next sentence, 1 a random one.
        self.nsp = OutputLayer(self.config, 2)

    def __call__(
        self,
        input_ids_BxL: jax.Array,
        token_type_ids_BxL: jax.Array,
        attention_mask_BxL: jax.Array,
        masked_lm_positions_BxM: jax.Array,
        *,
        deterministic: bool,
    ) -> PreTrainingOutput:
        """Returns both heads' logits; arguments as in `BertEncoder` and the MLM head."""
        hidden_BxLxD, pooled_BxD = self.bert(
            input_ids_BxL, token_type_ids_BxL, attention_mask_BxL, deterministic=deterministic
        )
        return PreTrainingOutput(
            mlm_logits_BxMxW=self.mlm(hidden_BxLxD, masked_lm_positions_BxM, self.bert.decode),
            nsp_logits_Bx2=self.nsp(pooled_BxD),
            vocab_size=self.config.vocab_size,
        )
