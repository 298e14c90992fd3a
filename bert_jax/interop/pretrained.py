"""A BERT on its way from one program to another."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from bert_jax import workdir
from bert_jax.errors import UserError, naming
from bert_jax.interop import weights as weights_lib
from bert_jax.interop.names import ForeignTensor, Shape, match
from bert_jax.interop.weights import Weights, expected_shapes, output_shapes
from bert_jax.models import BertConfig
from bert_jax.tokenizers import Tokenizer
from bert_jax.training.stages import resolve_stages

# BERT's own keys (bert_config.json); those without a value here must be in any config.
MODEL_KEYS = {
    field.name: None if field.default is dataclasses.MISSING else field.default
    for field in dataclasses.fields(BertConfig)
    if field.name
    not in ("sinusoidal_positions", "dtype", "scan_layers", "remat", "fused_attention")
}

# No dimension of a BERT is beyond this; what is, would overflow or fill the memory.
_MOST = 2**24
# Key of `training`: heads that were initialised, not trained.
UNTRAINED = "untrained_heads"
# Beside the weights, in every format: what bert_jax knows of their training.
TRAINING = "bert_jax_training.json"


@dataclasses.dataclass
class Pretrained:
    """Weights, shape and tokenizer of a BERT.

    Attributes:
      source: Where it was read, for messages.
      model: BERT's config keys and their values.
      weights: Flat float32 weights (see `bert_jax.interop.weights`), all of them.
      tokenizer: None where the source has none.
      warnings: A sentence each: what the source lacks, and what of it was left out.
      training: How it was trained, where that is known: `step`, `config`, `corpus`,
        `results`, as in a work directory's files. It travels along.
      head: Of a fine-tuned model: a key of `models.tasks.TASK_MODELS`; else empty.
      labels: Of a head that has them: their names, in the order of the logits.
      features: Layers that the head reads instead of the last one.
      bilstm_size: Of the BiLSTM between the features and the head; 0: there is none.
      multi_label: Whether each label is judged by itself: any number of them may be right.
    """

    source: str
    model: dict[str, Any]
    weights: Weights
    tokenizer: Tokenizer | None
    warnings: list[str]
    training: dict[str, Any]
    head: str = ""
    labels: tuple[str, ...] = ()
    features: tuple[int, ...] = ()
    bilstm_size: int = 0
    multi_label: bool = False

    @property
    def model_config(self) -> BertConfig:
        return BertConfig.from_dict(self.model)

    def complete(self, seed: int = 0) -> None:
        """Makes it a model for pre-training, with all heads and a vocabulary without padding.

        A fine-tuned model's own head is left out; heads that the source lacks are initialised.

        Args:
          seed: What the new heads are drawn from.

        Raises:
          UserError: the embedding and the vocabulary do not belong together.
        """
        if self.head:
            self.leave_out_head()
        missing = weights_lib.add_missing_heads(self.weights, self.model_config, seed)
        if missing:
            heads = " and no ".join(missing)
            self.warnings.append(
                f"{self.source} has no {heads}: initialised at random, to be trained before use"
            )
        earlier = self.untrained_heads
        if earlier:
            self.warnings.append(
                f"the {' and the '.join(earlier)} of {self.source} were initialised at random by a "
                "conversion before: to be trained before use"
            )
        if missing or earlier:
            # It travels with the weights: nothing in them tells that they mean nothing.
            self.training = self.training | {UNTRAINED: [*earlier, *missing]}
        self.fit_vocabulary()

    def leave_out_head(self) -> None:
        """Drops a fine-tuned model's own head, and says so."""
        self.warnings.append(f"the head of {self.source} is of a task, and is left out")
        self.leave_out("classifier/", "bilstm/")
        self.head, self.labels, self.multi_label = "", (), False
        self.features, self.bilstm_size = (), 0

    def leave_out(self, *prefixes: str) -> None:
        """Drops the weights whose names begin so."""
        for name in [name for name in self.weights if name.startswith(prefixes)]:
            del self.weights[name]

    def fit_vocabulary(self) -> None:
        """Cuts rows of the embeddings that only pad the tokenizer's vocabulary.

        Raises:
          UserError: the embedding and the vocabulary do not belong together.
        """
        if self.tokenizer and self.tokenizer.vocab_size != self.model["vocab_size"]:
            self._cut_vocabulary(self.tokenizer.vocab_size)

    @property
    def max_length(self) -> int:
        """Tokens of the longest sequence that it has learned, [CLS] and [SEP] counted.

        Where a run of ours began at random, positions beyond its stages so far are noise.
        """
        positions = self.model["max_position_embeddings"]
        config = self.training.get("config")
        if not config or config["init_from"] or config["resume_from"]:
            return positions
        stages = resolve_stages(workdir.parse_config(config).train)
        begun = [s.max_seq_length for s in stages if s.first_step < self.training.get("step", 0)]
        return min(positions, max(begun, default=positions))

    @property
    def untrained_heads(self) -> list[str]:
        """Names of the heads that an earlier conversion initialised."""
        return self.training.get(UNTRAINED, [])

    def _cut_vocabulary(self, entries: int) -> None:
        rows = self.model["vocab_size"]
        # Embeddings are padded to a multiple of 8 to 128, for the hardware's sake.
        paddings = {-(-entries // multiple) * multiple for multiple in (8, 16, 32, 64, 128)}
        if rows not in paddings:
            raise UserError(
                f"{self.source} has {rows} rows of word embeddings but a vocabulary of {entries} "
                "entries, which no padding explains: the vocabulary is cut short, or of another "
                "model"
            )
        weights_lib.cut_vocabulary(self.weights, entries)
        self.model["vocab_size"] = entries
        self.warnings.append(
            f"{self.source} has {rows} rows for a vocabulary of {entries}: the last "
            f"{rows - entries}, beyond the vocabulary, are left out"
        )


def model_section(config: dict[str, Any], path: Any) -> dict[str, Any]:
    """BERT's keys out of a bert_config.json or config.json.

    Raises:
      UserError: keys are missing, or say that this is not a BERT as it was published.
    """
    missing = [key for key, default in MODEL_KEYS.items() if default is None and key not in config]
    if missing:
        raise UserError(f"{path} has no {', '.join(missing)}: it describes no BERT")
    model = {key: config.get(key, default) for key, default in MODEL_KEYS.items()}
    for key, value in model.items():
        expected = {"hidden_act": str, "causal": bool}.get(key, (int, float))
        wanted = {"hidden_act": "a name", "causal": "true or false"}.get(key, "a number")
        if not isinstance(value, expected) or isinstance(value, bool) != (expected is bool):
            raise UserError(f"{path}: {key} is {value!r}; it must be {wanted}")
    _check_ranges(model, path)
    if model["hidden_size"] % model["num_attention_heads"]:
        raise UserError(
            f"{path}: num_attention_heads is {model['num_attention_heads']}, which does not divide "
            f"hidden_size, {model['hidden_size']}"
        )
    return model


def _check_ranges(model: dict[str, Any], path: Path) -> None:
    for key, default in MODEL_KEYS.items():
        value = model[key]
        if isinstance(default, bool):
            continue
        if default is None or isinstance(default, int):
            if not isinstance(value, int) or not 0 < value <= _MOST:
                raise UserError(
                    f"{path}: {key} is {value!r}; it must be a whole number above 0, and at most "
                    f"{_MOST}"
                )
        elif key.endswith("_prob"):
            if not 0 <= value < 1:
                raise UserError(f"{path}: {key} is {value!r}; it must be at least 0 and below 1")
        elif key != "hidden_act" and not 0 < value < math.inf:
            raise UserError(f"{path}: {key} is {value!r}; it must be above 0")


def collect_weights(
    model: dict[str, Any],
    names: Mapping[str, ForeignTensor],
    found: Mapping[str, Shape],
    read: Callable[[str], np.ndarray],
    source: Path,
    num_outputs: int = 0,
) -> tuple[Weights, list[str]]:
    """Reads the tensors that are a BERT's and lays them out as ours.

    Args:
      model: BERT's config keys and their values.
      names: What each of our weights is called in the file.
      found: The file's tensors, with their shapes.
      read: Reads one of them.
      source: The file, for messages.
      num_outputs: Of a fine-tuned model's output layer, which is among the names; 0: it has none.

    Returns:
      Flat float32 weights, and a sentence about the tensors that are left out.

    Raises:
      UserError: tensors are missing, unknown, misshapen, or of another type.
    """
    shapes = expected_shapes(BertConfig.from_dict(model))
    if num_outputs:
        shapes |= output_shapes(model["hidden_size"], num_outputs)
    present, others = match(found, names, shapes, str(source))
    weights = {}
    for ours in present:
        theirs = names[ours]
        weights[ours] = theirs.restore(
            _to_float32(read(theirs.name), theirs.name, source), shapes[ours]
        )
    warnings = []
    if others:
        warnings.append(f"{source}: {', '.join(others)} belong to another task and are left out")
    return weights, warnings


def _to_float32(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """The array as float32, where that loses nothing."""
    if array.dtype == np.float32:
        return array
    if array.dtype in (np.float16, ml_dtypes.bfloat16):
        return array.astype(np.float32)
    raise UserError(
        f"{path}: {name} is {array.dtype}; weights must be float32, bfloat16 or float16"
    )


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      UserError: there is none in the file.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path.parent} has no {path.name}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} is damaged: it should hold a JSON object")
    return values


def write_object(path: Path, values: dict[str, Any]) -> None:
    """Writes a JSON object, as people like to read it."""
    with naming(path):
        path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def read_training(directory: Path) -> dict[str, Any]:
    """How the model in a directory was trained, if bert_jax wrote it; else empty.

    Raises:
      UserError: the file is damaged.
    """
    path = directory / TRAINING
    if not path.exists():
        return {}
    training = read_object(path)
    try:
        if training.get("config"):
            workdir.parse_config(training["config"])
        whole = all(isinstance(training.get(key, {}), dict) for key in ("corpus", "results"))
        heads = training.get(UNTRAINED, [])
        if not whole or not set(heads) <= set(weights_lib.HEADS.values()):
            raise UserError("it is not what bert_jax writes")
    except (UserError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read ({error}); the weights can do without: remove the file"
        ) from error
    return training


def write_training(pretrained: Pretrained, directory: Path) -> None:
    """Notes how the model was trained, where that is known."""
    if pretrained.training:
        write_object(directory / TRAINING, pretrained.training)
