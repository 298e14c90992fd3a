"""What a head of fine-tuning is: a record that training, conversion and inference read."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from ml_collections import ConfigDict

from bert_jax.base.parts import import_name
from bert_jax.heads.verb import Verb
from bert_jax.tokenizers import Tokenizer, TokenRow
from bert_jax.tokenizers.given_texts import Text


class LoadedModel(Protocol):
    """What the methods of a head may use of a model in memory; see `inference.finetuned`.

    Attributes:
      source: The path that the model was read from.
      max_length: The largest number of tokens in a row.
      labels: The names of the labels in the order of the outputs.
      multi_label: Whether the labels are independent: any number of them may be right.
      threshold: The probability above which `predict` gives such a label.
      text_columns: The columns of the one or two sentences of a training example; empty if they
        are not known.
      trained: The config that the model was trained with; empty if it is not known.
    """

    source: str
    tokenizer: Tokenizer
    max_length: int
    labels: tuple[str, ...]
    multi_label: bool
    threshold: float
    text_columns: tuple[str, ...]
    trained: Mapping[str, Any]

    def rows(self, texts: Sequence[Text], *, whole: bool = False) -> list[TokenRow]:
        """Tokenizes texts and pairs, and cuts them to `max_length` unless they stay `whole`."""
        ...

    def outputs(self, rows: Sequence[TokenRow]) -> list[np.ndarray]:
        """Runs the model: its outputs for each row, stacked in the order of their names."""
        ...

    def require_segments(self) -> None:
        """Raises UserError if the model takes no pairs."""
        ...


def _nothing(*_: Any) -> dict[str, Any]:
    return {}


@dataclasses.dataclass(frozen=True)
class Head:
    """A head of fine-tuning.

    It names its model and its loss, because a command needs the verb before it imports JAX.

    Attributes:
      model: MODULE:NAME of the Flax module, which is made with a BertConfig, `num_outputs` and
        `model_options`. `models.task_models.TaskModel` describes what it has.
      loss: MODULE:NAME of the `Objective`, which is made with `loss_options`.
      num_outputs: The number of outputs if it is always the same; 0 for one for each label.
      model_options: Takes a completed config; returns more arguments of the model. Only a run has
        them: a converted model is made without.
      loss_options: Takes a completed config and the training examples of each class.
      divides_batch: Whether the loss itself divides a batch for gradient accumulation.
      task: The task that reads labeled files for a model without a config of training.
      transformers_class: The class in `transformers` without the family's name and "For": a key of
        `Family.task_classes`. Empty if there is none.
      methods: The methods of a loaded model by name. Their first argument is a `LoadedModel`.
      verb: The command of `predict`, if there is one.
      embedding: Takes a completed config; returns the arguments of `Embedding` for a head that is
        no layer of its own, but the way in which the encoder's states become a vector.
      batch_fields: Takes a completed config and the sequences of an example; returns shapes and
        dtypes of a batch, with which `compile_check` compiles the step.
      advice: Commands to print at the end of a run, by what they are for, if they are not those of
        the verb.
    """

    model: str
    loss: str
    num_outputs: int = 0
    model_options: Callable[[ConfigDict], Mapping[str, Any]] = _nothing
    loss_options: Callable[[ConfigDict, Mapping[str, int]], Mapping[str, Any]] = _nothing
    divides_batch: bool = False
    task: str = ""
    transformers_class: str = ""
    methods: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    verb: Verb | None = None
    embedding: Callable[[ConfigDict], Mapping[str, Any]] | None = None
    batch_fields: Callable[[ConfigDict, int], Mapping[str, tuple[tuple[int, ...], Any]]] | None = (
        None
    )
    advice: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def model_class(self) -> Any:
        return import_name(self.model)

    def make_model(self, model_config: Any, num_labels: int, run: ConfigDict | None = None) -> Any:
        """Makes the model; `num_labels` 0 means regression.

        Args:
          model_config: A BertConfig.
          run: The config of the run, if the model is trained or was trained in one.
        """
        options = {"num_outputs": self.num_outputs or max(1, num_labels)}
        if run is not None:
            options |= self.model_options(run)
        return self.model_class(model_config, **options)

    def make_loss(self, config: ConfigDict, class_counts: Mapping[str, int]) -> Any:
        """Makes the loss; `class_counts` are the training examples of each class, if any."""
        return import_name(self.loss)(**self.loss_options(config, class_counts))
