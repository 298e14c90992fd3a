"""Directories that `transformers` reads and writes: config.json, weights, tokenizer."""

import dataclasses
import re
import shutil
import warnings as python_warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.heads import builtin_heads, load_head
from bert_jax.interop.embedding import Embedding
from bert_jax.interop.families import FAMILIES, family_of_type, load_family
from bert_jax.interop.family import SEQUENCES_AND_TOKENS, Family, Names, TaskClass, Tensor
from bert_jax.interop.model_card import model_card
from bert_jax.interop.model_keys import (
    current_keys,
    dropout_warnings,
    read_family_keys,
    read_terms,
    write_family_keys,
)
from bert_jax.interop.names import collect_weights, export_weights, foreign_names, names_in_file
from bert_jax.interop.pretrained import PROJECTION, Pretrained, read_training, write_training
from bert_jax.interop.sentence_transformers import (
    activation_path,
    is_colbert,
    write_cross_encoder,
    write_embedding,
)
from bert_jax.interop.tokenizer_files import (
    read_huggingface_tokenizer,
    tokenizer_class_of,
    write_huggingface_tokenizer,
)
from bert_jax.interop.weights import POOLER, expected_shapes, head_of, model_shapes
from bert_jax.models import BertConfig

CONFIG = "config.json"
SAFETENSORS = "model.safetensors"
TORCH = "pytorch_model.bin"
_INDEX = ".index.json"
_WEIGHT_FILES = (SAFETENSORS, SAFETENSORS + _INDEX, TORCH, TORCH + _INDEX)
# Tensors of several versions of `transformers`, which follow from the config.
_BUFFERS = re.compile(r"(.*\.)?position_ids|.*inv_freq").fullmatch
_CUSTOM_CODE = "the code that its auto_map names is never run"
# What the file of a ColBERT has beside the encoder.
_COLBERT = Names("projection/", "", "matrix kernel linear.weight")
_OF_SEQUENCES = "SequenceClassification"
_REGRESSION = "regression"
_SINGLE_LABEL = "single_label_classification"
_MULTI_LABEL = "multi_label_classification"


def is_huggingface(path: Path) -> bool:
    """Returns whether a directory has weights under a name that `save_pretrained` gives."""
    return any((path / name).exists() for name in _WEIGHT_FILES)


def read_huggingface(path: Path, family_name: str = "", with_weights: bool = True) -> Pretrained:
    """Reads a model with its pre-training heads or its task head; see `formats.read`."""
    described, config = _described(path, family_name)
    if not with_weights:
        return described
    family = load_family(described.family)
    model, terms = described.model, described.terms
    head, warnings = {}, described.warnings
    with open_weights(path) as (file, tensors):
        tensors = _with_current_names(tensors, family)
        _drop_copies(tensors, family, file)
        model.update(family.read_tensors(tensors, BertConfig(**model), file))
        tensors = {name: x for name, x in tensors.items() if not _BUFFERS(name)}
        names = names_in_file(family, tensors, BertConfig(**model).max_blocks)
        try:
            head = _read_head(config, tensors, family, model["causal"])
        except UserError as problem:
            warnings.append(f"{path}: {problem}: the model is read without its head")
        shapes = expected_shapes(BertConfig(**model), terms)
        if head:
            record = load_head(head["head"])
            task_class = family.task_classes[record.transformers_class]
            names |= foreign_names(task_class.names, "huggingface", 0)
            num_labels = len(head.get("labels", ()))
            task_shapes = model_shapes(record.make_model(BertConfig(**model), num_labels))
            # A ModernBERT with a task head has part of the masked-LM head.
            heads = {head_of(name) for name in task_shapes} - {""}
            shapes = {n: shape for n, shape in shapes.items() if head_of(n) not in heads}
            shapes |= task_shapes
        if is_colbert(path):
            names |= foreign_names([_COLBERT], "huggingface", 0)
            shapes[PROJECTION] = tensors[names[PROJECTION].name].shape[::-1]
        weights, left_out = collect_weights(tensors, names, shapes, family, file)
    tokenizer, guessed = read_huggingface_tokenizer(path, family)
    return dataclasses.replace(
        described,
        weights=weights,
        tokenizer=tokenizer,
        warnings=left_out + warnings + guessed,
        **head,
    )


def _described(path: Path, family_name: str) -> tuple[Pretrained, dict[str, Any]]:
    """Reads the config of a directory; see `formats.describe` and `current_keys`."""
    config = files.read_json(path / CONFIG)
    # Files from the first year of transformers have no model_type; all of them are BERTs.
    model_type = config.get("model_type", "bert")
    family_name = family_name or family_of_type(model_type, tokenizer_class_of(path))
    if not family_name:
        custom = f", and {_CUSTOM_CODE}" if "auto_map" in config else ""
        raise UserError(
            f"{path / CONFIG}: model_type is {model_type!r}; it must be one of "
            f"{', '.join(FAMILIES)}, or --family must name its family{custom}"
        )
    family = load_family(family_name)
    config = current_keys(config, family, path / CONFIG)
    model = read_family_keys(config, family, path / CONFIG)
    training = read_training(path)
    class_name = (config.get("architectures") or [""])[0]
    terms = read_terms(training, family, model["causal"], class_name)
    warnings = dropout_warnings(config, model, family, path / CONFIG)
    if "auto_map" in config:
        warnings.append(f"{path / CONFIG}: {_CUSTOM_CODE}: the model is read as a {family.title}")
    described = Pretrained(
        str(path), model, warnings=warnings, training=training, family=family_name, terms=terms
    )
    return described, config


def write_huggingface(
    pretrained: Pretrained, path: Path, embedding: Embedding | None = None
) -> None:
    """Writes a directory for the model's class and `AutoTokenizer`; empties `pretrained.weights`.

    With `embedding`, sentence-transformers can also load the directory, with these settings.
    """
    model, family = pretrained.model, load_family(pretrained.family)
    names = foreign_names(family.names, "huggingface", pretrained.model_config.max_blocks)
    keys = write_family_keys(model, family, pretrained.source, pretrained.tokenizer)
    if pretrained.head:
        task_class = _task_class(pretrained, family)
        class_name, pipeline = task_class.name, task_class.pipeline
        names |= foreign_names(task_class.names, "huggingface", 0)
    else:
        chosen = family.pretraining_class(model["causal"], pretrained.terms)
        class_name, pipeline = chosen.name, chosen.pipeline
        names = {ours: names[ours] for ours in names if ours.startswith(chosen.weights)}
    pretrained.drop_unnamed(names, class_name)
    for name in family.required_weights:
        if name not in pretrained.weights:
            raise UserError(f"{pretrained.source} has no {name}; a {family.title} must have it")
    tensors = {
        name: np.ascontiguousarray(value)
        for name, value in export_weights(pretrained.weights, names)
    }
    tensors |= family.write_tensors(pretrained.model_config, pretrained.head)
    # transformers refuses a file without the name of a framework.
    save_file(tensors, path / SAFETENSORS, metadata={"format": "pt"})
    config = {"architectures": [class_name], "model_type": family.model_types[0], **keys}
    if pretrained.head:
        config |= _head_config(pretrained)
    if pretrained.tokenizer:
        write_huggingface_tokenizer(pretrained.tokenizer, path, family, pretrained.max_length)
    write_training(pretrained, path)
    if embedding and pretrained.head:
        write_cross_encoder(embedding, pretrained.activation, path)
    elif embedding and embedding.kind == "dense":
        write_embedding(embedding, model["hidden_size"], path)
    card = model_card(pretrained, family, class_name, pipeline, embedding)
    files.write_whole(path / "README.md", card.encode())
    # safetensors makes the file readable only by its owner.
    shutil.copymode(path / "README.md", path / SAFETENSORS)
    files.write_json(path / CONFIG, config)


def _task_class(pretrained: Pretrained, family: Family) -> TaskClass:
    """Finds the class for the head of a model."""
    head, problem = load_head(pretrained.head), ""
    if pretrained.model["causal"] and head.model_class.POOLED:
        problem = "is causal and pools the last token"
    elif head.transformers_class not in family.task_classes:
        problem = f"is a {family.title} with a head for {pretrained.head}"
    if problem:
        raise UserError(f"{pretrained.source} {problem}, which no class of transformers supports")
    return family.task_classes[head.transformers_class]


def _head_config(pretrained: Pretrained) -> dict[str, Any]:
    head, labels = load_head(pretrained.head), pretrained.labels
    config: dict[str, Any] = {"classifier_dropout": head.model_class.DROPOUT}
    if head.transformers_class == _OF_SEQUENCES:
        kind = _MULTI_LABEL if pretrained.multi_label else _SINGLE_LABEL
        config["problem_type"] = kind if labels else _REGRESSION
    if head.transformers_class in SEQUENCES_AND_TOKENS:
        # Regression has one label.
        names = labels or ("LABEL_0",)
        config["id2label"] = {str(i): name for i, name in enumerate(names)}
        config["label2id"] = {name: i for i, name in enumerate(names)}
    if pretrained.activation:
        config["sentence_transformers"] = {"activation_fn": activation_path(pretrained.activation)}
    return config


def _read_head(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], family: Family, causal: bool
) -> dict[str, Any]:
    """Reads the head that a config and its tensors describe, as attributes of a `Pretrained`."""
    named = config.get("architectures") or [""]
    kind = next((k for k, c in family.task_classes.items() if c.name == named[0]), "")
    if not kind:
        return {}
    head, record = next(
        (name, x) for name, x in builtin_heads().items() if x.transformers_class == kind
    )
    is_pooled = record.model_class.POOLED
    if is_pooled and causal:
        raise UserError(
            "its head pools the first token, which attends to no other token in a causal model"
        )
    task_class = family.task_classes[kind]
    output = [t.name for t in foreign_names([task_class.output], "huggingface", 0).values()]
    needed = list(output)
    if is_pooled:
        names = foreign_names([*family.names, *task_class.names], "huggingface", 0)
        needed += [theirs.name for ours, theirs in names.items() if head_of(ours) == POOLER]
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise UserError(f"its {named[0]} has no {', '.join(missing)}")
    width = tensors[output[0]].shape[0]
    if kind in SEQUENCES_AND_TOKENS:
        return {"head": head, **_labels(config, kind, width)}
    return {"head": head}


def _labels(config: Mapping[str, Any], kind: str, num_labels: int) -> dict[str, Any]:
    """Reads the labels; missing keys follow from the number of labels, as in `transformers`."""
    problem = config.get("problem_type") if kind == _OF_SEQUENCES else _SINGLE_LABEL
    if problem is None:
        problem = _SINGLE_LABEL if num_labels > 1 else _REGRESSION
    if problem == _REGRESSION:
        if num_labels > 1:
            raise UserError(f"its head predicts {num_labels} numbers at once")
        return {}
    names = config.get("id2label")
    if names is None:
        # transformers does not write its own default names.
        names = {str(i): f"LABEL_{i}" for i in range(num_labels)}
    keys = [str(i) for i in range(num_labels)]
    if not isinstance(names, dict) or sorted(names) != sorted(keys):
        raise UserError(f"id2label in its config does not name the {num_labels} labels")
    return {"labels": tuple(str(names[k]) for k in keys), "multi_label": problem == _MULTI_LABEL}


def _with_current_names(tensors: Mapping[str, Tensor], family: Family) -> dict[str, Tensor]:
    """Gives the tensors of an older or bare file their current names, with the encoder's prefix."""
    prefix = family.encoder_prefixes[0]
    spellings = (foreign_names(x, "huggingface", 1) for x in (family.names, family.other_names))
    names = [theirs.name for spelling in spellings for theirs in spelling.values()]
    names = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    parts = tuple({name.partition(".")[0] + "." for name in names})
    current = {}
    for name, tensor in tensors.items():
        for old, new in family.renamed.items():
            name = re.sub(old, new, name)
        current[prefix + name if name.startswith(parts) else name] = tensor
    return current


def _drop_copies(tensors: dict[str, Tensor], family: Family, file: Path) -> None:
    """Drops copies of other tensors after comparing them."""
    for copy, original in family.tied.items():
        if copy not in tensors:
            continue
        if original not in tensors:
            # The tensor is saved only under its other name.
            tensors[original] = tensors.pop(copy)
        elif not np.array_equal(tensors.pop(copy).read(), tensors[original].read()):
            raise UserError(f"{file}: {copy} differs from {original}, to which it must be tied")


@contextmanager
def open_weights(path: Path) -> Iterator[tuple[Path, dict[str, Tensor]]]:
    """Yields the file that holds or lists the weights, and all tensors by name."""
    file = next((path / name for name in _WEIGHT_FILES if (path / name).exists()), None)
    if file is None:
        raise UserError(f"{path} has no {SAFETENSORS}")
    parts = [file]
    if file.name.endswith(_INDEX):
        names = set(files.read_json(file)["weight_map"].values())
        parts = [files.inside(path, name, file) for name in sorted(names)]
    tensors: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for part in parts:
            with files.naming(part):
                files.check_regular(part)
                tensors |= _torch(part) if ".bin" in part.name else _safetensors(part, stack)
        yield file, tensors


def _safetensors(path: Path, stack: ExitStack) -> dict[str, Tensor]:
    # With mmap, the mapped pages would add to the memory of the arrays.
    file = stack.enter_context(safe_open(path, framework="np", backend="pread"))
    return {
        name: Tensor(tuple(file.get_slice(name).get_shape()), partial(file.get_tensor, name))
        for name in file.keys()
    }


def _torch(path: Path) -> dict[str, Tensor]:
    """Reads a PyTorch state dict, if torch is installed.

    `weights_only` limits the file to tensors and plain values: nothing in it is executed.
    """
    try:
        import torch
    except ImportError:
        raise UserError(
            f"{path} can only be read with torch, which is not installed: pip install -e "
            "'.[torch]', or save the model as model.safetensors"
        ) from None
    with python_warnings.catch_warnings(action="ignore"):
        # Files from before torch 1.6 are not zip archives and cannot be mapped.
        mmap = zipfile.is_zipfile(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    return {str(name): _torch_tensor(value) for name, value in state.items()}


def _torch_tensor(tensor: Any) -> Tensor:
    # numpy has no bfloat16; float32 holds the shorter floats exactly.
    is_short = tensor.is_floating_point() and tensor.itemsize < 4
    read = lambda: (tensor.float() if is_short else tensor).detach().numpy()  # noqa: E731
    return Tensor(tuple(tensor.shape), read)
