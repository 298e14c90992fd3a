"""The encoder under the heads of fine-tuning (paper, section 4)."""

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.bert import BertEncoder
from bert_jax.models.bert_config import BertConfig
from bert_jax.models.bilstm import BiLstm
from bert_jax.models.dropout import Dropout
from bert_jax.models.heads import OutputLayer

Outputs = dict[str, jax.Array]


class TaskModel(nn.Module):
    """The encoder under one output layer; `bert/...` are a pre-trained model's own names.

    Attributes:
      config: The encoder's hyperparameters.
      num_outputs: Numbers that the output layer gives for each sequence, token or choice.
      features: Layers whose states the head reads, side by side, and whose encoder is not
        trained (paper, section 5.3): 0 is the embeddings, 1 the first block, -1 the last
        one. Empty: the usual head, on the last block or the pooler.
      bilstm_size: Of models with something for each token: units of each direction of a
        `BiLstm` that reads the features and that the head reads; 0: there is none.
    """

    # What of a batch the model is called with.
    INPUTS: ClassVar[tuple[str, ...]] = ("input_ids", "token_type_ids", "attention_mask")
    # Whether the head reads the pooler, which otherwise does not exist.
    POOLED: ClassVar[bool] = False
    # Whether outputs are [B, L, ...]: something for each token.
    PER_TOKEN: ClassVar[bool] = False
    # Of what the head reads, while it is learned (run_classifier.py: keep_prob=0.9).
    DROPOUT: ClassVar[float] = 0.1

    config: BertConfig
    num_outputs: int
    features: tuple[int, ...] = ()
    bilstm_size: int = 0

    def setup(self):
        self.bert = BertEncoder(self.config, has_pooler=self.POOLED and not self.features)
        if self.bilstm_size:
            self.bilstm = BiLstm(self.config, self.bilstm_size)
        self.classifier = OutputLayer(self.config, self.num_outputs)
        self.dropout = Dropout(self.DROPOUT)

    def __call__(
        self,
        input_ids_BxL: jax.Array,
        token_type_ids_BxL: jax.Array,
        attention_mask_BxL: jax.Array,
        *,
        deterministic: bool,
    ) -> Outputs:
        """Returns float32 outputs, see the class; arguments as in `BertEncoder`."""
        inputs = input_ids_BxL, token_type_ids_BxL, attention_mask_BxL
        return self.outputs(self.classifier(self.encoded(inputs, deterministic)))

    def outputs(self, logits: jax.Array) -> Outputs:
        """What the output layer gives, by the names that losses and scores know."""
        return {"logits": logits}

    def encoded(self, inputs: tuple[jax.Array, ...], deterministic: bool) -> jax.Array:
        """What the head reads, after dropout: [B, D'] of pooled models, else [B, L, D']."""
        if self.features:
            # As features of a fixed encoder, the same at every step: without its dropout.
            layers = self.bert.hidden_states(*inputs, deterministic=True)
            chosen = [layers[i] for i in self.features]
            if self.POOLED:
                chosen = [hidden_BxLxD[:, 0] for hidden_BxLxD in chosen]
            encoded = jax.lax.stop_gradient(jnp.concatenate(chosen, axis=-1))
            if self.bilstm_size:
                encoded = self.bilstm(encoded, attention_mask_BxL=inputs[2])
        else:
            hidden_BxLxD, pooled_BxD = self.bert(*inputs, deterministic=deterministic)
            encoded = pooled_BxD if self.POOLED else hidden_BxLxD
        return self.dropout(encoded, deterministic)


class BertForSequenceClassification(TaskModel):
    """A label, or a number (regression), of a sequence or a pair: `logits` [B, num_outputs]."""

    POOLED: ClassVar[bool] = True


class BertForTokenClassification(TaskModel):
    """A label for every token: `logits` [B, L, num_outputs]."""

    PER_TOKEN: ClassVar[bool] = True


class BertForQuestionAnswering(TaskModel):
    """Where an answer starts and ends: `start_logits` and `end_logits` [B, L]; num_outputs is 2."""

    PER_TOKEN: ClassVar[bool] = True
    # As in run_squad.py.
    DROPOUT: ClassVar[float] = 0.0

    def outputs(self, logits: jax.Array) -> Outputs:
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


class BertForMultipleChoice(TaskModel):
    """Which of C sequences is the right one (paper, section 4.4); num_outputs is 1."""

    POOLED: ClassVar[bool] = True

    def __call__(
        self,
        input_ids_BxCxL: jax.Array,
        token_type_ids_BxCxL: jax.Array,
        attention_mask_BxCxL: jax.Array,
        *,
        deterministic: bool,
    ) -> Outputs:
        """Returns float32 `logits` [B, C]; arguments as in `BertEncoder`, C of each."""
        shape = input_ids_BxCxL.shape
        inputs = tuple(
            x.reshape(-1, shape[-1])
            for x in (input_ids_BxCxL, token_type_ids_BxCxL, attention_mask_BxCxL)
        )
        scores_Nx1 = self.classifier(self.encoded(inputs, deterministic))
        return {"logits": scores_Nx1.reshape(shape[:-1])}


TASK_MODELS: dict[str, type[TaskModel]] = {
    "sequence_classification": BertForSequenceClassification,
    "token_classification": BertForTokenClassification,
    "question_answering": BertForQuestionAnswering,
    "multiple_choice": BertForMultipleChoice,
}


def num_outputs(head: str, num_labels: int) -> int:
    """Of the output layer under a head: two ends of a span, one score of a choice or number."""
    fixed = {"question_answering": 2, "multiple_choice": 1}
    return fixed.get(head, max(1, num_labels))


def make_task_model(
    head: str,
    num_labels: int,
    config: BertConfig,
    features: tuple[int, ...] = (),
    bilstm_size: int = 0,
) -> Any:
    """The model of a head, a key of TASK_MODELS; no labels mean regression."""
    return TASK_MODELS[head](config, num_outputs(head, num_labels), tuple(features), bilstm_size)
