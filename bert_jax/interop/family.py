"""The description of a model family for import and export."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.models import BertConfig

Keys = dict[str, Any]


class Names(NamedTuple):
    """A table of weight names with common prefixes.

    Attributes:
      ours: The prefix of our flat names. "{}" in the names stands for the number of a layer; such a
        table applies to every layer.
      huggingface: The prefix in `transformers`.
      rows: A line for each weight: its layout (a key of `names.LAYOUTS`), our name, Hugging
        Face's name and, if there is `google`, Google's name. A key of `names.SHORTHANDS` instead of
        a layout stands for a weight and its bias. "+N" after the layout means that the tensor
        begins with N extra rows, which are not used; "@I/N" that it consists of N weights of one
        shape, of which this is number I.
      google: The prefix in google-research/bert's checkpoints; None if it lacks these weights.
      biasless: The first parts of our names for which a shorthand stands for the weight alone.
    """

    ours: str
    huggingface: str
    rows: str
    google: str | None = None
    biasless: tuple[str, ...] = ()


class PreTrainingClass(NamedTuple):
    """A class of `transformers` for the model of some pre-training objective.

    Attributes:
      terms: The names in `config.objective.terms` of the terms whose heads the class has.
      weights: Prefixes of the flat names of the weights that the class has.
      causal: The value of `config.model.causal` that the class requires.
      pipeline: The `pipeline_tag` of a model card; it needs the heads of the first term.
    """

    name: str
    terms: tuple[str, ...] = ()
    weights: tuple[str, ...] = ("bert/",)
    causal: bool = False
    pipeline: str = ""


class TaskClass(NamedTuple):
    """A class of `transformers` for a fine-tuned model.

    Attributes:
      output: The names of the output layer.
      pipeline: The `pipeline_tag` of a model card.
      pooler: The names of the pooler's dense layer, if they are not the family's.
    """

    name: str
    output: Names
    pipeline: str
    pooler: Names | None = None

    @property
    def names(self) -> list[Names]:
        """The names that the class adds to the family's, or replaces."""
        return [self.output, *([self.pooler] if self.pooler else [])]


# The prefixes of an encoder's weights without the pooler.
WITHOUT_POOLER = ("bert/embeddings/", "bert/embeddings_project/", "bert/encoder/")
# The classes for fine-tuned models, without the family's name and "For", with the names of their
# output layers in most families.
_OUTPUTS = {
    "SequenceClassification": "classifier",
    "TokenClassification": "classifier",
    "QuestionAnswering": "qa_outputs",
    "MultipleChoice": "classifier",
}
_PIPELINES = {
    "SequenceClassification": "text-classification",
    "TokenClassification": "token-classification",
    "QuestionAnswering": "question-answering",
    "MultipleChoice": "multiple-choice",
}
# The only such classes of many families.
SEQUENCES_AND_TOKENS = ("SequenceClassification", "TokenClassification")


def masked_lm_class(name: str) -> PreTrainingClass:
    return PreTrainingClass(name, ("masked_lm",), (*WITHOUT_POOLER, "mlm/"), pipeline="fill-mask")


def masked_lm_classes(
    prefix: str, weights: tuple[str, ...] = ("bert/",)
) -> tuple[PreTrainingClass, PreTrainingClass]:
    """Makes RobertaForMaskedLM and RobertaModel, for example; the latter has these weights."""
    model = PreTrainingClass(f"{prefix}Model", weights=weights)
    return masked_lm_class(f"{prefix}ForMaskedLM"), model


def task_classes(
    prefix: str,
    kinds: Iterable[str] = _OUTPUTS,
    outputs: Mapping[str, str] | None = None,
    poolers: Mapping[str, str] | None = None,
) -> dict[str, TaskClass]:
    """Makes the classes of a family for fine-tuned models, by their kinds.

    Args:
      prefix: The start of the class names: "Bert" in BertForTokenClassification.
      kinds: The ends of the class names: "TokenClassification".
      outputs: Maps kinds to the output layer, if it has another name than in most families.
      poolers: Maps kinds to the pooler's dense layer, for classes where the head
        has that layer instead of the encoder.
    """
    outputs, poolers = {**_OUTPUTS, **(outputs or {})}, poolers or {}
    return {
        kind: TaskClass(
            f"{prefix}For{kind}",
            Names("classifier/", "", f"output dense {outputs[kind]}"),
            _PIPELINES[kind],
            Names("bert/pooler/", "", f"dense dense {poolers[kind]}") if kind in poolers else None,
        )
        for kind in kinds
    }


def same_keys(keys: str) -> dict[str, str]:
    """Maps the keys of `config.model` in a text to keys of a config.json with the same names."""
    return {key: key for key in keys.split()}


def computed(values: Mapping[str, Any], keys: Mapping[str, Any]) -> Keys:
    """Returns values with those computed that are functions of other keys."""
    return {key: value(keys) if callable(value) else value for key, value in values.items()}


class Tensor(NamedTuple):
    """A tensor of a file; `read` reads its values."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Family:
    """How a model family is stored in the files of other programs.

    Attributes:
      title: The name of the family in a model card.
      model_types: Values of `model_type` in a config.json; the first is written.
      names: The weights' names, as they are written.
      other_names: The names of weights that other versions of a program give other tensors.
      pretraining_classes: The first class that fits a model is used. Weights
        without further information are read as a model of the first class.
      task_classes: The classes for fine-tuned models, by `Head.transformers_class`.
      recipe: The config in configs/ by which the family is trained.
      tokenizer: The tokenizer class of directories that do not name one, a key of
        `tokenizer_files.TOKENIZER_CLASSES`. Exports prefer this class if it fits.
      config_keys: Maps the keys of `config.model` to keys of a config.json, in the order in
        which they are written.
      value_names: Maps keys of `config.model` to the values that stand for theirs in a config.json.
      fixed: Keys of `config.model` and the one value that the family supports, or a function of all
        keys that returns it. Other keys that a config.json lacks must have their default values,
        unless they affect only training.
      defaults: Keys that a config.json may lack and the values of transformers' class, if they are
        not BERT's.
      constants: Keys of a config.json and the one value that the family supports, or a function.
      written: Keys that are written to every config.json, with their values or functions.
      token_ids: Maps keys of a config.json to the attributes of a tokenizer that they repeat.
      encoder_prefixes: Prefixes of the names of an encoder's tensors in either program. Names in a
        file of the bare encoder lack the first.
      renamed: Maps regular expressions for parts of names in older files to the current parts.
      required_weights: Flat names of weights that all classes of the family have.
      tied: Maps each tensor that is a copy of another one to the name of the original.
      read_config: Takes the keys of a config.json and its path; returns the keys with the names and
        values that `config_keys` and `constants` describe.
      write_config: Takes such keys and the model; returns those of a config.json.
      read_tensors: Takes the tensors of a file by name, the model and the path. It adds, renames
        or removes tensors, and returns the keys of the model that they determine.
      write_tensors: Takes a model and its head of fine-tuning, if any; returns the tensors of a
        file that are no weights of ours.
      The four functions raise UserError for what bert_jax or the family lacks.
    """

    title: str
    model_types: tuple[str, ...]
    names: Sequence[Names]
    pretraining_classes: Sequence[PreTrainingClass]
    task_classes: Mapping[str, TaskClass]
    config_keys: Mapping[str, str]
    encoder_prefixes: tuple[str, ...]
    other_names: Sequence[Names] = ()
    recipe: str = ""
    tokenizer: str = "BertTokenizer"
    value_names: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    written: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    token_ids: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"pad_token_id": "pad_id"}
    )
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    required_weights: tuple[str, ...] = ()
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    read_config: Callable[[Keys, Path], Keys] = lambda config, path: config
    write_config: Callable[[Keys, BertConfig], Keys] = lambda config, model: config
    read_tensors: Callable[[dict[str, Tensor], BertConfig, Path], Keys] = lambda *_: {}
    write_tensors: Callable[[BertConfig, str], dict[str, np.ndarray]] = lambda *_: {}

    def pretraining_class(self, causal: bool, terms: Sequence[str] | None) -> PreTrainingClass:
        """Finds the first class that fits a model; None stands for unknown terms."""
        fitting = [c for c in self.pretraining_classes if c.causal == causal]
        if terms is not None:
            # Masked diffusion trains the head of a masked LM.
            terms = [{"diffusion": "masked_lm"}.get(term, term) for term in terms]
            fitting = [c for c in fitting if set(c.terms) <= set(terms)]
        return fitting[0]
