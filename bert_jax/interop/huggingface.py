"""Directories that `transformers` reads and writes: config.json, weights, tokenizer."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bert_jax.errors import UserError, naming
from bert_jax.interop.huggingface_heads import Head, class_name, head_config, read_head
from bert_jax.interop.model_card import model_card
from bert_jax.interop.names import huggingface_head_names, huggingface_names
from bert_jax.interop.pretrained import (
    Pretrained,
    collect_weights,
    model_section,
    read_object,
    read_training,
    write_object,
    write_training,
)
from bert_jax.interop.tokenizer_files import read_huggingface_tokenizer, write_huggingface_tokenizer
from bert_jax.interop.torch_file import read_torch_file
from bert_jax.models.task_models import num_outputs

CONFIG = "config.json"
SAFETENSORS = "model.safetensors"
TORCH = "pytorch_model.bin"
_INDEX = ".index.json"
_WEIGHT_FILES = (SAFETENSORS, SAFETENSORS + _INDEX, TORCH, TORCH + _INDEX)

# transformers' name -> ours, of activations that are the same function.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "relu": "relu",
}
# Values of keys that would make it another model than BERT.
_REQUIRED = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
# Kept by transformers beside the parameter that it repeats.
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
# A constant, not a parameter.
_BUFFER = "embeddings.position_ids"


class Tensor(NamedTuple):
    """A tensor of a file, read when it is asked for."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def is_huggingface(path: Path) -> bool:
    """Whether a directory looks like one that `save_pretrained` wrote."""
    return any((path / name).exists() for name in _WEIGHT_FILES)


def read_huggingface(path: Path) -> Pretrained:
    """Reads a BERT, whatever heads it has: those of pre-training, or a fine-tuned one.

    Raises:
      UserError: the files are damaged, or hold another model than their config says.
    """
    config = read_object(path / CONFIG)
    model = _bert_keys(config, path / CONFIG)
    names = huggingface_names(model["num_hidden_layers"])
    with _open_weights(path) as (file, tensors):
        tensors = {_current_name(name): tensor for name, tensor in tensors.items()}
        _check_tied(tensors, file)
        found = {name: tensor.shape for name, tensor in tensors.items()}
        head, problem = read_head(config, found)
        if head.name:
            names |= huggingface_head_names(head.name)
        weights, warnings = collect_weights(
            model,
            names,
            found,
            lambda name: tensors[name].read(),
            file,
            num_outputs=num_outputs(head.name, len(head.labels)) if head.name else 0,
        )
        if problem:
            warnings.append(f"{path}: {problem}: it is read without its head")
    return Pretrained(
        source=str(path),
        model=model,
        weights=weights,
        tokenizer=read_huggingface_tokenizer(path),
        warnings=warnings,
        training=read_training(path),
        head=head.name,
        labels=head.labels,
        multi_label=head.multi_label,
    )


def write_huggingface(pretrained: Pretrained, path: Path) -> None:
    """Writes what `AutoTokenizer` and `BertForPreTraining` load; the weights are used up.

    A fine-tuned model is that of its head's class, with its labels' names.

    Raises:
      UserError: `transformers` has no such model.
    """
    if pretrained.features:
        raise UserError(
            f"{pretrained.source} reads the states of several layers (config.train.features), "
            "which no class of transformers does: it cannot be written for it"
        )
    model = pretrained.model
    names = huggingface_names(model["num_hidden_layers"])
    if pretrained.head:
        names |= huggingface_head_names(pretrained.head)
    weights = pretrained.weights
    tensors = {}
    # One after another, so that never all of them are there twice.
    for name in list(weights):
        tensors[names[name].name] = np.ascontiguousarray(names[name].export(weights.pop(name)))
    try:
        # transformers refuses a file that does not name its framework.
        save_file(tensors, path / SAFETENSORS, metadata={"format": "pt"})
    except SafetensorError as error:
        raise UserError(f"{path / SAFETENSORS} could not be written: {error}") from error
    config = {
        "architectures": [class_name(pretrained.head)],
        "model_type": "bert",
        **{key: value for key, value in model.items() if key != "causal"},
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
        "use_cache": True,
        **head_config(Head(pretrained.head, pretrained.labels, pretrained.multi_label)),
    }
    if pretrained.tokenizer:
        config["pad_token_id"] = pretrained.tokenizer.pad_id
        write_huggingface_tokenizer(pretrained.tokenizer, path, model["max_position_embeddings"])
    write_object(path / CONFIG, config)
    # safetensors' own choice is that nobody else may read it.
    shutil.copymode(path / CONFIG, path / SAFETENSORS)
    write_training(pretrained, path)
    with naming(path / "README.md"):
        (path / "README.md").write_text(model_card(pretrained), encoding="utf-8")


def _bert_keys(config: dict[str, Any], path: Path) -> dict[str, Any]:
    for key, wanted in _REQUIRED.items():
        if config.get(key, wanted) != wanted:
            raise UserError(f"{path}: {key} is {config[key]!r}; only {wanted!r} is BERT's")
    model = model_section(config, path)
    if model["hidden_act"] not in _ACTIVATIONS:
        raise UserError(
            f"{path}: hidden_act is {model['hidden_act']!r}; it must be one of "
            f"{', '.join(_ACTIVATIONS)}"
        )
    return model | {"hidden_act": _ACTIVATIONS[model["hidden_act"]]}


def _current_name(name: str) -> str:
    """The name as transformers writes it today, of a whole BertForPreTraining."""
    # Of checkpoints translated from TensorFlow in transformers' first year.
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
    name = name.replace("LayerNorm.beta", "LayerNorm.bias")
    # A bare BertModel is saved without the prefix.
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def _check_tied(tensors: dict[str, Tensor], file: Path) -> None:
    """Leaves out what only repeats another tensor, if it does."""
    tensors.pop(f"bert.{_BUFFER}", None)
    for copy, original in _TIED.items():
        if copy not in tensors:
            continue
        if original not in tensors:
            # Saved under the other of its two names.
            tensors[original] = tensors.pop(copy)
        elif not np.array_equal(tensors.pop(copy).read(), tensors[original].read()):
            raise UserError(
                f"{file}: {copy} differs from {original}; BERT's decoder is tied to its embeddings"
            )


@contextmanager
def _open_weights(path: Path) -> Iterator[tuple[Path, dict[str, Tensor]]]:
    """The file that holds (or lists) the weights, and its tensors by name."""
    file = next(path / name for name in _WEIGHT_FILES if (path / name).exists())
    parts = _sharded(file) if file.name.endswith(_INDEX) else [file]
    tensors: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for part in parts:
            opened = _torch(part) if ".bin" in part.name else _safetensors(part, stack)
            twice = sorted(tensors.keys() & opened.keys())
            if twice:
                raise UserError(f"{part}: {twice[0]} is in another file of {file} too")
            tensors.update(opened)
        if len(parts) > 1 or file.name.endswith(_INDEX):
            _check_index(file, tensors)
        yield file, tensors


def _sharded(index: Path) -> list[Path]:
    parts = _weight_map(index).values()
    for part in parts:
        # A name of its own directory: an index must not lead elsewhere.
        if not isinstance(part, str) or not part or Path(part).name != part:
            raise UserError(f"{index}: {part!r} is not the name of a file beside it")
        if not (index.parent / part).exists():
            raise UserError(f"{index} names {part}, which is not there")
    return [index.parent / part for part in sorted(set(parts))]


def _check_index(index: Path, tensors: dict[str, Tensor]) -> None:
    missing = sorted(_weight_map(index).keys() - tensors.keys())
    if missing:
        raise UserError(f"{index} names {', '.join(missing)}, which its files do not hold")


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{index} is damaged: it has no weight_map")
    return weight_map


def _safetensors(path: Path, stack: ExitStack) -> dict[str, Tensor]:
    try:
        # Read, not mapped: mapped pages count as memory beside the arrays made of them.
        file = stack.enter_context(safe_open(path, framework="np", backend="pread"))
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or no safetensors file: {error}") from error

    def reader(name: str) -> Callable[[], np.ndarray]:
        def read() -> np.ndarray:
            try:
                return file.get_tensor(name)
            except (AttributeError, TypeError):
                # numpy has no such type.
                dtype = file.get_slice(name).get_dtype()
                raise UserError(
                    f"{path}: {name} is {dtype}; weights must be float32, bfloat16 or float16"
                ) from None

        return read

    return {n: Tensor(tuple(file.get_slice(n).get_shape()), reader(n)) for n in file.keys()}


def _torch(path: Path) -> dict[str, Tensor]:
    def reader(tensor: Any) -> Callable[[], np.ndarray]:
        # numpy has no bfloat16; float32 holds the shorter floats exactly.
        is_short = tensor.is_floating_point() and tensor.itemsize < 4
        return lambda: (tensor.float() if is_short else tensor).detach().numpy()

    tensors = read_torch_file(path)
    return {name: Tensor(tuple(x.shape), reader(x)) for name, x in tensors.items()}
