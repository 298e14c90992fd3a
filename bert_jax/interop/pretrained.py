"""A model as a plain record, whatever program wrote it; `formats` reads and writes it."""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from bert_jax import config as config_lib
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.interop import weights as weights_lib
from bert_jax.interop.embedding import Embedding
from bert_jax.interop.families import DEFAULT
from bert_jax.interop.weights import Weights
from bert_jax.models import BertConfig
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.terms import BERT_TERMS, make_terms
from bert_jax.tokenizers import Tokenizer
from bert_jax.tokenizers.extension import replaced_pieces
from bert_jax.training import workdir
from bert_jax.training.stages import resolve_stages

# The key of `training` that lists heads that were initialized but never trained.
UNTRAINED = "untrained_heads"
# The weights of vectors beside those of the encoder and the heads of pre-training.
PROJECTION, QUERY_WEIGHTS = "projection/kernel", "query_weights"
# The file beside the weights, in every format, that describes their training.
TRAINING = "bert_jax_training.json"
# The key of `training` with the `max_length` of the weights that a run began with.
INITIAL_LENGTH = "initial_max_length"


@dataclasses.dataclass
class Pretrained:
    """Weights, shape and tokenizer of a model.

    Attributes:
      source: The path that the model was read from, for messages.
      model: The keys of `config.model` that describe the model, and their values.
      weights: Flat float32 weights (see `bert_jax.interop.weights`).
      tokenizer: None if the source has none.
      warnings: One sentence for each part that the source lacks or that was left out.
      training: How the model was trained, as far as known: `step`, `config`, `corpus` and
        `results`, as in the files of a work directory. Every format keeps it.
      family: The family, as `config.family` names it.
      terms: The terms of pre-training, as `config.objective.terms` names them.
      head: The head of a fine-tuned model, as `config.head` names it.
      labels: The names of the head's labels, in the order of the logits.
      multi_label: Whether an example may have any number of labels.
      activation: What turns the logit of a head with one output into a score: "sigmoid" or
        "identity"; any other name as in its file. Empty if no file says it, which means sigmoid.
    """

    source: str
    model: dict[str, Any]
    weights: Weights = dataclasses.field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    warnings: list[str] = dataclasses.field(default_factory=list)
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    family: str = DEFAULT
    terms: tuple[str, ...] = BERT_TERMS
    head: str = ""
    labels: tuple[str, ...] = ()
    multi_label: bool = False
    activation: str = ""
    embedding: Embedding = Embedding()

    @property
    def is_cross_encoder(self) -> bool:
        """Whether its head gives one number for a text or a pair, as a reranker's does."""
        return self.head == "sequence_classification" and len(self.labels) < 2

    @property
    def model_config(self) -> BertConfig:
        return BertConfig(**self.model)

    def complete(self, seed: int = 0, terms: Sequence[str] | None = None) -> None:
        """Turns this into a model for pre-training, without padding in the vocabulary.

        The model gets the heads of `terms` (by default its own terms). Missing heads are
        initialized from the seed. All other heads are dropped, including a fine-tuned one.
        """
        if self.head:
            self.drop_head()
        for name in (PROJECTION, QUERY_WEIGHTS):
            if name in self.weights:
                self.warnings.append(f"the {name} of {self.source}, for vectors, is left out")
        self.terms = tuple(terms or self.terms)
        model = PreTrainingModel(self.model_config, make_terms(self.terms))
        self.weights, drawn = weights_lib.complete_weights(model, self.weights, seed)
        heads = {weights_lib.head_of(name) for name in drawn}
        labels = weights_lib.head_labels(self.model_config, self.terms)
        missing = list(dict.fromkeys(labels[head] for head in labels if head in heads))
        if missing:
            self.warnings.append(
                f"{self.source} has no {' and no '.join(missing)}: initialized at random, train "
                "before use"
            )
        if earlier := self.untrained_heads:
            self.warnings.append(
                f"the {' and the '.join(earlier)} of {self.source} were initialized at random by "
                "an earlier conversion: train before use"
            )
        if missing or earlier:
            # The weights themselves do not show this.
            self.training = self.training | {UNTRAINED: [*earlier, *missing]}
        self.cut_padding()

    def needed_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError(
                f"{self.source} has no tokenizer; python -m bert_jax.convert --model={self.source} "
                "--vocab=vocab.txt --to=huggingface --output=DIR adds one"
            )
        return self.tokenizer

    def extend(self, tokenizer: Tokenizer) -> None:
        """Gives the model rows for the tokens that `tokenizer` adds to its own vocabulary."""
        pieces = replaced_pieces(self.tokenizer, tokenizer)
        weights_lib.extend_vocabulary(self.weights, pieces, tokenizer.vocab_size)
        self.model["vocab_size"], self.tokenizer = tokenizer.vocab_size, tokenizer

    def drop_head(self) -> None:
        """Drops the head of a fine-tuned model, with a warning."""
        self.warnings.append(f"the task head of {self.source} is left out")
        self.weights = {n: x for n, x in self.weights.items() if not n.startswith("classifier/")}
        self.head, self.labels, self.multi_label, self.activation = "", (), False, ""

    def drop_unnamed(self, names: Collection[str], target: str) -> None:
        """Drops the weights that have no name in another program, with a warning."""
        unnamed = [name for name in self.weights if name not in names]
        if unnamed:
            self.warnings.append(f"{target} has no tensor for {', '.join(unnamed)}: left out")
            for name in unnamed:
                del self.weights[name]

    def cut_padding(self) -> None:
        """Cuts off the rows of the embeddings beyond the vocabulary, whose ids have no token."""
        rows = self.model["vocab_size"]
        size = self.tokenizer.vocab_size if self.tokenizer else rows
        if size == rows:
            return
        if size > rows:
            # Summarizers, for example, have no row for the mask of their pre-training.
            if used := {*self.tokenizer.tokens[rows:]} - {self.tokenizer.special_tokens.mask}:
                raise UserError(
                    f"{self.source} has {rows} rows of word embeddings but a vocabulary of {size} "
                    f"tokens, and none for {min(used)!r}: the vocabulary belongs to another model"
                )
            return
        weights_lib.cut_vocabulary(self.weights, size)
        self.model["vocab_size"] = size
        self.warnings.append(
            f"{self.source} has {rows} rows for a vocabulary of {size}: the last {rows - size}, "
            "beyond the vocabulary, are left out"
        )

    @property
    def max_length(self) -> int:
        """The length of the longest training sequence, with [CLS] and [SEP].

        In a model of bert_jax, the positions that neither the stages so far nor the initial weights
        cover are untrained. A fine-tuned model has the length of its task, or of its own files.
        """
        positions = self.model["max_position_embeddings"]
        if self.is_cross_encoder and self.embedding.max_length:
            return min(positions, self.embedding.max_length)
        config, initial = self.training.get("config"), self.training.get(INITIAL_LENGTH)
        if config and workdir.is_finetuning(config):
            documents = config.get("data", {}).get("max_seq_length", positions)
            return min(positions, max(documents, self.embedding.query_length or 0))
        if not config or (config.get("init_from") and not initial):
            return positions
        stages = resolve_stages(config_lib.from_stored(config))
        begun = [
            s.max_seq_length for s in stages if s.first_step < (self.training.get("step") or 0)
        ]
        return min(positions, max(begun + [initial or 0]) or positions)

    @property
    def untrained_heads(self) -> list[str]:
        """The labels of the heads that an earlier conversion initialized."""
        return self.training.get(UNTRAINED, [])

    def missing_head(self, term: str) -> str:
        """Explains why the heads of a term are missing or untrained; empty if they can predict."""
        labels = weights_lib.head_labels(self.model_config, [term])
        present = {weights_lib.head_of(name) for name in self.weights}
        if term not in self.terms:
            return f"{self.source} has no {[term, *labels.values()][-1]}"
        for head, label in labels.items():
            if head not in present:
                return f"{self.source} has no {label}"
            if label in self.untrained_heads:
                return (
                    f"the {label} of {self.source} was initialized at random by a conversion and "
                    "never trained"
                )
        return ""


def read_training(directory: Path) -> dict[str, Any]:
    """Reads how a model was trained; empty if its directory has no TRAINING file."""
    path = directory / TRAINING
    training = files.read_json(path, optional=True)
    try:
        if config := training.get("config"):
            config_lib.from_stored(config)
    except UserError as error:
        raise UserError(
            f"{path} is of another version of bert_jax: {error}; without this file, the model is "
            "read as one of another program"
        ) from error
    return training


def write_training(pretrained: Pretrained, directory: Path) -> None:
    if pretrained.training:
        files.write_json(directory / TRAINING, pretrained.training)
