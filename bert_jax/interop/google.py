"""google-research/bert's checkpoints: bert_model.ckpt, bert_config.json, vocab.txt.

TensorFlow is imported where it is used: a conversion that has nothing to do with
Google's files must not wait for it.
"""

from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.interop.names import ForeignTensor, google_names
from bert_jax.interop.pretrained import (
    Pretrained,
    collect_weights,
    model_section,
    read_object,
    read_training,
    write_object,
    write_training,
)
from bert_jax.interop.tokenizer_files import read_google_tokenizer, write_google_tokenizer
from bert_jax.interop.weights import Weights

CONFIG = "bert_config.json"
CHECKPOINT = "bert_model.ckpt"
# What run_pretraining.py keeps beside the model: the optimizer's moments and the step.
_SLOTS = ("/adam_m", "/adam_v")
_COUNTERS = ("global_step",)
# Bounds what a conversion holds beside the weights.
_PART_BYTES = 32 << 20
_ACTIVATIONS = ("gelu", "gelu_new", "relu")


def is_google(path: Path) -> bool:
    """Whether it is a checkpoint's prefix, or a directory with a bert_config.json."""
    return _index(path).is_file() or (path / CONFIG).is_file()


def read_google(path: Path, lowercase: bool | None = None) -> Pretrained:
    """Reads a TF1 checkpoint of the original, whatever heads it has.

    Args:
      path: The directory, or the checkpoint's prefix, `DIR/bert_model.ckpt`.
      lowercase: Whether the vocabulary is an uncased one; None: as its entries suggest.

    Raises:
      UserError: the files are damaged, or hold another model than their config says.
    """
    prefix = path if _index(path).is_file() else _only_checkpoint(path)
    directory = prefix.parent
    model = model_section(read_object(directory / CONFIG), directory / CONFIG)
    if model["hidden_act"] not in _ACTIVATIONS:
        raise UserError(
            f"{directory / CONFIG}: hidden_act is {model['hidden_act']!r}; it must be one of "
            f"{', '.join(_ACTIVATIONS)}"
        )
    tensors = _Checkpoint(prefix)
    found = {
        name: shape
        for name, shape in tensors.shapes.items()
        if not name.endswith(_SLOTS) and name not in _COUNTERS
    }
    names = google_names(model["num_hidden_layers"])
    weights, warnings = collect_weights(model, names, found, tensors.read, prefix)
    return Pretrained(
        source=str(path),
        model=model,
        weights=weights,
        tokenizer=read_google_tokenizer(directory, lowercase),
        warnings=warnings,
        training=read_training(directory),
    )


def write_google(pretrained: Pretrained, path: Path) -> None:
    """Writes a directory that the original's scripts start from; the weights are used up."""
    pretrained.warnings += _differences(pretrained)
    names = google_names(pretrained.model["num_hidden_layers"])
    try:
        _save(pretrained.weights, names, path / CHECKPOINT)
    except _tensorflow().errors.OpError as error:
        # "{{node ...}} FILE; No space left on device [Op:SaveV2]"
        reason = error.message.rpartition("; ")[2].partition(" [Op:")[0]
        raise UserError(f"{path / CHECKPOINT} could not be written: {reason}") from error
    write_object(path / CONFIG, pretrained.model)
    if pretrained.tokenizer:
        write_google_tokenizer(pretrained.tokenizer, path)
    write_training(pretrained, path)


def _differences(pretrained: Pretrained) -> list[str]:
    """What of this model the original's scripts cannot do."""
    model, tokenizer = pretrained.model, pretrained.tokenizer
    warnings = []
    if model["hidden_act"] == "gelu_new":
        warnings.append('the original knows no hidden_act "gelu_new": its "gelu" is that function')
    if model["layer_norm_eps"] != 1e-12:
        warnings.append(
            f"layer_norm_eps is {model['layer_norm_eps']:g}: the original always takes 1e-12"
        )
    if tokenizer and tokenizer.kind != "wordpiece":
        warnings.append(f"the original cannot read a {tokenizer.kind} vocabulary")
    return warnings


def _save(weights: Weights, names: dict[str, ForeignTensor], prefix: Path) -> None:
    """Saves in parts that are then merged: TensorFlow holds one part, not all, twice."""
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
    """A TF checkpoint's variables, with errors a person can read."""

    def __init__(self, prefix: Path):
        tf = _tensorflow()
        self._prefix = prefix
        # TensorFlow turns some of its own errors into these of Python.
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
            f"{self._prefix} is damaged or no TensorFlow checkpoint: "
            f"{words[0] if words else type(error).__name__}"
        )


def _tensorflow() -> Any:
    # It takes seconds to import: only when a file of its is asked for.
    from bert_jax.data.lean_tensorflow import tf

    return tf


def _index(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def _only_checkpoint(directory: Path) -> Path:
    prefixes = [path.with_suffix("") for path in sorted(directory.glob("*.index"))]
    named = [prefix for prefix in prefixes if prefix.name == CHECKPOINT]
    if len(named or prefixes) != 1:
        there = ", ".join(prefix.name for prefix in prefixes) or "none"
        raise UserError(
            f"{directory} must hold one checkpoint, such as {CHECKPOINT}.index, and has {there}; "
            f"where there are several, name the one, as {directory / 'NAME'}"
        )
    return (named or prefixes)[0]
