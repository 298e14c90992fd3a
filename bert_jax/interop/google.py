"""Checkpoints of google-research/bert: bert_model.ckpt, bert_config.json, vocab.txt.

TensorFlow takes seconds to import: it is imported only when a checkpoint is opened.
"""

from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.families import DEFAULT, load_family
from bert_jax.interop.family import Family
from bert_jax.interop.model_keys import read_model_keys, write_model_keys
from bert_jax.interop.names import ForeignTensor, foreign_names
from bert_jax.interop.pretrained import (
    Pretrained,
    collect_weights,
    read_object,
    read_terms,
    read_training,
    write_object,
    write_training,
)
from bert_jax.interop.tokenizer_files import read_google_tokenizer, write_google_tokenizer
from bert_jax.interop.weights import Weights, expected_shapes
from bert_jax.models import BertConfig
from bert_jax.models.activations import ACTIVATIONS

CONFIG = "bert_config.json"
CHECKPOINT = "bert_model.ckpt"
# Variables of run_pretraining.py that are not the model's: Adam's moments and the step.
_SLOTS = ("/adam_m", "/adam_v")
_COUNTERS = ("global_step",)
# Limits the memory that a conversion needs beside the weights.
_PART_BYTES = 32 << 20


def is_google(path: Path) -> bool:
    """Returns whether a path is a checkpoint's prefix, or a directory with a bert_config.json."""
    return _index(path).is_file() or (path / CONFIG).is_file()


def read_google(path: Path, lowercase: bool | None = None, family_name: str = "") -> Pretrained:
    """Reads a TF1 checkpoint of Google's program with whatever heads it has.

    Args:
      path: The directory, or the checkpoint's prefix, `DIR/bert_model.ckpt`.
      lowercase: Whether the vocabulary is uncased; None to guess from its entries.
      family_name: As `config.family`; BERT by default.

    Raises:
      UserError: The files are damaged, or hold another model than their config describes.
    """
    family_name = family_name or DEFAULT
    family = _google_family(family_name)
    prefix = path if _index(path).is_file() else _only_checkpoint(path)
    directory = prefix.parent
    config = read_object(directory / CONFIG)
    activations = {name: name for name in ACTIVATIONS}
    model = read_model_keys(config, family.config_keys, activations, directory / CONFIG)
    training = read_training(directory)
    terms = read_terms(training, family, model["causal"])
    tensors = _Checkpoint(prefix)
    found = {
        name: shape
        for name, shape in tensors.shapes.items()
        if not name.endswith(_SLOTS) and name not in _COUNTERS
    }
    names = foreign_names(family.names, "google", model["num_hidden_layers"])
    shapes = expected_shapes(BertConfig(**model), terms)
    weights, warnings = collect_weights(shapes, names, found, tensors.read, family, prefix)
    return Pretrained(
        source=str(path),
        model=model,
        weights=weights,
        tokenizer=read_google_tokenizer(directory, lowercase),
        warnings=warnings,
        training=training,
        family=family_name,
        terms=terms,
    )


def write_google(pretrained: Pretrained, path: Path) -> None:
    """Writes a directory that Google's scripts start from; uses up the weights."""
    family = _google_family(pretrained.family)
    pretrained.warnings += _differences(pretrained, family)
    names = foreign_names(family.names, "google", pretrained.model["num_hidden_layers"])
    pretrained.drop_unnamed(names, "Google's format")
    try:
        _save(pretrained.weights, names, path / CHECKPOINT)
    except _tensorflow().errors.OpError as error:
        # "{{node ...}} FILE; No space left on device [Op:SaveV2]"
        reason = error.message.rpartition("; ")[2].partition(" [Op:")[0]
        raise UserError(f"{path / CHECKPOINT} could not be written: {reason}") from error
    write_object(path / CONFIG, write_model_keys(pretrained.model, family.config_keys))
    if pretrained.tokenizer:
        write_google_tokenizer(pretrained.tokenizer, path)
    write_training(pretrained, path)


def _google_family(name: str) -> Family:
    family = load_family(name)
    if not family.google_activations:
        raise UserError(f"the family {name} has no format of Google's; use --to=huggingface")
    return family


def _differences(pretrained: Pretrained, family: Family) -> list[str]:
    """Returns a sentence for everything that Google's scripts would do differently."""
    model, tokenizer = pretrained.model, pretrained.tokenizer
    warnings = []
    if model["hidden_act"] not in family.google_activations:
        warnings.append(
            f'Google\'s program has no hidden_act "{model["hidden_act"]}"; it has '
            + " and ".join(family.google_activations)
        )
    for key, value in family.google_constants.items():
        if model[key] != value:
            warnings.append(f"{key} is {model[key]}: Google's program always uses {value}")
    if tokenizer and tokenizer.kind != "wordpiece":
        warnings.append(f"Google's program cannot read a {tokenizer.kind} vocabulary")
    return warnings


def _save(weights: Weights, names: dict[str, ForeignTensor], prefix: Path) -> None:
    """Saves in parts and merges them, so that TensorFlow copies only one part at a time."""
    tf = _tensorflow()
    parts = []
    with tf.device("cpu"):
        while weights:
            tensors, num_bytes = {}, 0
            while weights and num_bytes < _PART_BYTES:
                name, value = weights.popitem()
                tensors[names[name].name] = tf.constant(names[name].export(value))
                num_bytes += value.nbytes
            parts.append(f"{prefix}.part-{len(parts)}")
            tf.raw_ops.SaveV2(
                prefix=parts[-1],
                tensor_names=list(tensors),
                shape_and_slices=[""] * len(tensors),
                tensors=list(tensors.values()),
            )
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=parts, destination_prefix=str(prefix), delete_old_dirs=False
        )


class _Checkpoint:
    """The variables of a TF checkpoint; damage is a UserError."""

    def __init__(self, prefix: Path):
        tf = _tensorflow()
        self._prefix = prefix
        # TensorFlow turns some of its errors into Python's own.
        self._errors = (tf.errors.OpError, ValueError, RuntimeError, IndexError)
        try:
            self._reader = tf.train.load_checkpoint(str(prefix))
            shapes: dict[str, Any] = self._reader.get_variable_to_shape_map()
        except self._errors as error:
            raise self._damaged(error) from error
        self.shapes = {name: tuple(shape) for name, shape in sorted(shapes.items())}

    def read(self, name: str) -> np.ndarray:
        try:
            return self._reader.get_tensor(name)
        except self._errors as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> UserError:
        words = str(error).strip().splitlines()
        return UserError(
            f"{self._prefix} is damaged or not a TensorFlow checkpoint: "
            f"{words[0] if words else type(error).__name__}"
        )


def _tensorflow() -> Any:
    from bert_jax.data.lean_tensorflow import tf

    return tf


def _index(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def _only_checkpoint(directory: Path) -> Path:
    prefixes = [path.with_suffix("") for path in sorted(directory.glob("*.index"))]
    named = [prefix for prefix in prefixes if prefix.name == CHECKPOINT]
    if len(named or prefixes) != 1:
        names = ", ".join(prefix.name for prefix in prefixes) or "none"
        raise UserError(
            f"{directory} must hold one checkpoint, such as {CHECKPOINT}.index, but has {names}; "
            f"to choose one of several, give {directory / 'NAME'}"
        )
    return (named or prefixes)[0]
