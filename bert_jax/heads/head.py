"""What a head of fine-tuning is: a record that training, conversion and inference read."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from bert_jax.base.parts import import_name
from bert_jax.heads.verb import Verb
from bert_jax.tokenizers import Tokenizer

if TYPE_CHECKING:
    from bert_jax.training.stages import Stage


def _nothing(*_: Any) -> dict[str, Any]:
    return {}


@dataclasses.dataclass(frozen=True)
class Head:
    """A head of fine-tuning.

    Its model and its loss are given by name, because a command needs the verb before it imports
    JAX. A head outside the package may define them in its own file.

    Attributes:
      model: MODULE:NAME of the Flax module, which is made with a BertConfig, `num_outputs` and
        `model_options`. `models.task_models.TaskModel` describes what it has.
      loss: MODULE:NAME of the `Objective`, which is made with `loss_options`; most are a `TaskLoss`
        of `objectives.task_losses`.
      num_outputs: The number of outputs if it is always the same; 0 for one for each label; None
        for a model without this argument.
      model_options: Takes a completed config and the tokenizer, or None where only the shapes of
        parameters matter; returns more arguments of the model. A model without the config of a run
        is made without them.
      loss_options: Takes a completed config, the number of training examples of each class and the
        stage; returns the arguments of the loss.
      divides_batch: Whether the loss itself divides a batch for gradient accumulation.
      task: The task that reads labeled files for a model without a config of training.
      transformers_class: The class in `transformers` without the family's name and "For": a key of
        `Family.task_classes`. Empty if there is none.
      stored_as: The built-in head of a finished model, if it is another one with the same weights.
      methods: The methods of a loaded model by name. Their first argument is the model,
        an `inference.finetuned.FineTuned`, which tokenizes (`rows`) and runs (`outputs`).
      verb: The command of `predict`, if there is one.
      embedding: Takes a completed config; returns the arguments of `Embedding`: how a text becomes
        tokens and, for a head without a layer of its own, a vector.
      vector_weights: The prefixes of the weights beside the encoder that `embedding` needs; a
        finished model keeps them.
      activation: Takes a completed config; returns `Pretrained.activation` of the finished model.
      batch_fields: Takes a completed config and the number of sequences in an example; returns
        shapes and dtypes of a batch, with which `compile_check` compiles the step.
      num_texts: Takes a config; returns the number of sequences in an example. The data may have
        another, which `compile_check` does not read.
      advice: More commands to print at the end of a run, by what they are for; {path} stands for
        the work directory.
    """

    model: str
    loss: str
    num_outputs: int | None = 0
    model_options: Callable[[ConfigDict, Tokenizer | None], Mapping[str, Any]] = _nothing
    loss_options: Callable[[ConfigDict, Mapping[str, int], "Stage"], Mapping[str, Any]] = _nothing
    divides_batch: bool = False
    task: str = ""
    transformers_class: str = ""
    stored_as: str = ""
    methods: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    verb: Verb | None = None
    embedding: Callable[[ConfigDict], Mapping[str, Any]] | None = None
    vector_weights: tuple[str, ...] = ()
    activation: Callable[[ConfigDict], str] | None = None
    batch_fields: Callable[[ConfigDict, int], Mapping[str, Any]] | None = None
    num_texts: Callable[[ConfigDict], int] | None = None
    advice: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def model_class(self) -> Any:
        return import_name(self.model)

    def make_model(
        self,
        model_config: Any,
        num_labels: int,
        run: ConfigDict | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> Any:
        """Makes the model; `num_labels` 0 means regression.

        Args:
          model_config: A BertConfig.
          run: The config of the run, if the model is trained or was trained in one.
          tokenizer: See `model_options`.
        """
        options = {}
        if self.num_outputs is not None:
            options["num_outputs"] = self.num_outputs or max(1, num_labels)
        if run is not None:
            options |= self.model_options(run, tokenizer)
        return self.model_class(model_config, **options)

    def make_loss(self, config: ConfigDict, class_counts: Mapping[str, int], stage: "Stage") -> Any:
        """Makes the loss; see `loss_options`."""
        return import_name(self.loss)(**self.loss_options(config, class_counts, stage))
