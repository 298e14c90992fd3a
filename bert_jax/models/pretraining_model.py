"""The encoder with the heads of an objective's terms, and ELECTRA's generator."""

from typing import Any, ClassVar

import flax.linen as nn
import jax

from bert_jax.models.bert_config import BertConfig
from bert_jax.models.bert_encoder import BertEncoder
from bert_jax.models.encoder import Encoder
from bert_jax.models.heads import LanguageModelHead
from bert_jax.models.layers import Projection


class PreTrainingModel(nn.Module):
    """The encoder and the heads of its objective's terms (paper, section 3.1).

    Parameters are named `bert/...` in the encoder and HEAD/... in each head, as in `mlm/...`.

    Attributes:
      terms: The terms (`bert_jax.objectives.term.Term`), which declare the heads.
    """

    # Batch fields that the encoder and the decoder read.
    INPUTS: ClassVar[tuple[str, ...]] = ("input_ids", "token_type_ids", "attention_mask")
    DECODER_INPUTS: ClassVar[tuple[str, ...]] = ("decoder_input_ids", "decoder_attention_mask")

    config: BertConfig
    terms: tuple[Any, ...]

    def setup(self):
        self.bert = BertEncoder(self.config, has_pooler=any(t.needs_pooler for t in self.terms))
        heads = {name: h for t in self.terms for name, h in t.heads(self.config).items()}
        for name, head in heads.items():
            setattr(self, name, head)

    def __call__(self, batch: dict[str, jax.Array], *, deterministic: bool) -> dict[str, Any]:
        """Returns the outputs of each term's head, by the term's name.

        If the model has a decoder, terms also find its output in the batch: `decoder_states`,
        [B, T, D].

        Args:
          batch: The fields that the encoder and the terms declare; see `BertEncoder`.
        """
        for term in self.terms:
            batch = term.prepare(self, batch, deterministic=deterministic)
        hidden_BxLxD, pooled_BxD = self.bert(
            *(batch[name] for name in self.INPUTS),
            deterministic=deterministic,
            position_ids_BxL=batch.get("position_ids"),
            cls_positions_BxP=batch.get("cls_positions"),
        )
        if self.config.num_decoder_layers:
            states_BxTxD = self.bert.decoder(
                *(batch[name] for name in self.DECODER_INPUTS),
                hidden_BxLxD,
                batch["attention_mask"],
                self.bert.embeddings.table_WxE,
                deterministic,
            )
            batch = {**batch, "decoder_states": states_BxTxD}
        return {t.name: t.outputs(self, hidden_BxLxD, pooled_BxD, batch) for t in self.terms}

    @property
    def fields(self) -> dict[str, Any]:
        """Every batch field that the model is called with, and its number of axes."""
        decoder_inputs = self.DECODER_INPUTS if self.config.num_decoder_layers else ()
        axes = dict.fromkeys((*self.INPUTS, *decoder_inputs), 2)
        return axes | {n: len(f.dimensions) for t in self.terms for n, f in t.fields.items()}


class GeneratorModel(nn.Module):
    """The generator's layers above the shared embeddings (Clark et al. 2020, section 3).

    Attributes:
      config: The generator's own hyperparameters, `BertConfig.generator`.
    """

    config: BertConfig

    def setup(self):
        c = self.config
        if c.embedding_width != c.hidden_size:
            self.embeddings_project = Projection(c, c.hidden_size, ("pooled", "embed"))
        self.encoder = Encoder(c)
        self.mlm = LanguageModelHead(c)

    def __call__(
        self,
        embedded_BxLxE: jax.Array,
        attention_mask_BxL: jax.Array,
        positions_BxM: jax.Array,
        table_WxE: jax.Array,
        *,
        deterministic: bool,
        sequences_per_row: int = 1,
    ) -> jax.Array:
        """Returns float32 logits_BxMxW at some positions; see `LanguageModelHead`.

        Args:
          embedded_BxLxE: The output of the embeddings.
          attention_mask_BxL, sequences_per_row: See `Encoder`.
          positions_BxM: int32 positions to predict.
        """
        hidden_BxLxD = embedded_BxLxE
        if self.config.embedding_width != self.config.hidden_size:
            hidden_BxLxD = self.embeddings_project(embedded_BxLxE)
            hidden_BxLxD = nn.with_logical_constraint(hidden_BxLxD, ("batch", None, None))
        hidden_BxLxD = self.encoder(
            hidden_BxLxD,
            attention_mask_BxL,
            deterministic,
            sequences_per_row=sequences_per_row,
        )
        return self.mlm(hidden_BxLxD, positions_BxM, table_WxE)
