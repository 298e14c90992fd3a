"""Reads and writes multi-vector models: those of sentence-transformers, PyLate and ColBERT."""

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.interop.embedding import Embedding
from bert_jax.interop.huggingface import SAFETENSORS, open_weights
from bert_jax.interop.pretrained import PROJECTION, Pretrained
from bert_jax.interop.sentence_transformers import (
    TYPE,
    checked,
    encoder_folder,
    is_colbert,
    read_modules,
    read_settings,
    write_modules,
)
from bert_jax.tokenizers.extension import with_markers

_MASK = "MultiVectorMask"
_METADATA = "artifact.metadata"
_IDENTITY = "torch.nn.modules.linear.Identity"
_SKIPPED = "skiplist_words"
# PyLate's settings, which are among those of the library.
_PREFIXES = {"query": "query_prefix", "document": "document_prefix"}
_ATTENDS = ("attend_to_expansion_tokens", "attend_to_mask_tokens")
_LENGTHS = ("query_length", "document_length")
_PYLATE = {*_PREFIXES.values(), *_ATTENDS, *_LENGTHS, _SKIPPED, "do_query_expansion"}


def read_multi_vector(pretrained: Pretrained, path: Path, with_weights: bool) -> None:
    """Completes a multi-vector model: its settings, markers and, with weights, the projection."""
    modules = read_modules(path)
    folders = dict(modules)
    if others := folders.keys() - {"Transformer", "Dropout", "Dense", _MASK, "Normalize"}:
        raise UserError(
            f"{path}: its module {min(others)} is not supported in a multi-vector model"
        )
    embedding, library = pretrained.embedding, pretrained.embedding.library
    settings = read_settings(encoder_folder(path))
    mask = files.read_json(folders[_MASK] / "config.json") if _MASK in folders else {}
    if is_colbert(path):
        library = _metadata(pretrained, path) | library
    if not library.keys().isdisjoint(_PYLATE):
        settings = library | {key: value for key, value in settings.items() if value is not None}
        attends = (settings[key] for key in _ATTENDS if settings.get(key) is not None)
        length = settings.get("query_length") or 32
        if settings.get("do_query_expansion") is not False:
            usual = {"strategy": "fixed", "attend": next(attends, False), "length": length}
            settings.setdefault("query_expansion", usual)
        words = settings.get(_SKIPPED)
        mask.setdefault(_SKIPPED, list(string.punctuation) if words is None else words)
        prompts = dict(library["prompts"])
        for side, key in _PREFIXES.items():
            prefix = library.get(key) or ""
            prompts[side] = prefix + prompts.get(side, "").removeprefix(prefix)
            _register(prefix, pretrained)
        library = {key: library[key] for key in library if key not in _PYLATE}
        embedding = embedding._replace(library=library | {"prompts": prompts})
    elif "Normalize" not in folders:
        raise UserError(f"{path} has no module Normalize: its vectors must have length 1")
    expansion = settings.get("query_expansion")
    own, of_documents = (int(settings[key]) if settings.get(key) else None for key in _LENGTHS)
    pretrained.embedding = embedding._replace(
        pooling="tokens",
        max_length=of_documents or embedding.max_length,
        query_length=int(expansion["length"]) if expansion else own,
        expansion=_expansion(expansion, pretrained, path) if expansion else "none",
        skip_words=_skip_words(mask, pretrained, path),
    )
    if with_weights and PROJECTION not in pretrained.weights:
        layers = [folder for kind, folder in modules if kind == "Dense"]
        pretrained.weights[PROJECTION] = _projection(layers, pretrained.model["hidden_size"])


def _metadata(pretrained: Pretrained, path: Path) -> dict[str, Any]:
    """Reads the settings of Stanford's ColBERT, with the names of PyLate."""
    found = files.read_json(path / _METADATA, optional=True)
    if not found:
        pretrained.warnings.append(f"{path} has no {_METADATA}: the defaults of ColBERT are used")
    return {
        "query_prefix": f"{found.get('query_token_id') or '[unused0]'} ",
        "document_prefix": f"{found.get('doc_token_id') or '[unused1]'} ",
        "query_length": found.get("query_maxlen"),
        "document_length": found.get("doc_maxlen"),
        "attend_to_mask_tokens": found.get("attend_to_mask_tokens"),
        _SKIPPED: list(string.punctuation) if found.get("mask_punctuation", True) else [],
    }


def _register(prefix: str, pretrained: Pretrained) -> None:
    """Makes the token that a prefix is, or begins with, one that is found in texts."""
    known = pretrained.tokenizer.ids if pretrained.tokenizer else {}
    markers = [text for text in (prefix, *prefix.split()[:1]) if text in known][:1]
    if markers:
        pretrained.tokenizer = with_markers(pretrained.tokenizer, markers)


def _expansion(settings: Mapping[str, Any], pretrained: Pretrained, path: Path) -> str:
    if tokenizer := pretrained.tokenizer:
        allowed = tokenizer.special_tokens.mask, None
        checked(settings, "token", None, allowed, f"{path}: query_expansion")
    if settings["strategy"] != "fixed":
        pretrained.warnings.append(
            f"{path}: queries are cut to {settings['length']} tokens, whereas the strategy "
            f"{settings['strategy']!r} of its query_expansion cuts none"
        )
    return "attended" if settings.get("attend") else "masked"


def _skip_words(settings: Mapping[str, Any], pretrained: Pretrained, path: Path) -> tuple[str, ...]:
    checked(settings, "skiplist_tasks", None, (["document"], None), path)
    checked(settings, "keep_only_token_ids", None, (None,), path)
    words, tokenizer = settings.get(_SKIPPED) or (), pretrained.tokenizer
    if tokenizer and (unknown := [word for word in words if word not in tokenizer.ids]):
        pretrained.warnings.append(
            f"{path}: its skip words {' '.join(unknown)} are not tokens of its vocabulary: ignored"
        )
    return tuple(words)


def _projection(folders: Sequence[Path], width: int) -> np.ndarray:
    """Multiplies the layers of a projection to one matrix, float32 [width, W]."""
    product = np.eye(width)
    for folder in folders:
        config = files.read_json(folder / "config.json")
        checked(config, "bias", True, (False,), folder)
        checked(config, "activation_function", "Tanh", (_IDENTITY,), folder)
        with open_weights(folder) as (_, tensors):
            matrix = tensors["linear.weight"].read().T.astype(np.float64)
            if config.get("use_residual"):
                other = tensors.get("residual.weight")
                matrix += other.read().T if other else np.eye(len(matrix))
        product = product @ matrix
    return product.astype(np.float32)


def write_multi_vector(embedding: Embedding, projection_DxW: np.ndarray, path: Path) -> None:
    """Writes settings and the projection beside the files of an encoder: a MultiVectorEncoder."""
    tokens = dict.fromkeys(("module_input_name", "module_output_name"), "token_embeddings")
    transformer = {"document_length": embedding.max_length, "query_length": embedding.query_length}
    if embedding.expansion != "none":
        transformer["query_expansion"] = {
            "strategy": "fixed",
            "attend": embedding.expansion == "attended",
            "length": embedding.query_length,
        }
    dense = {"in_features": projection_DxW.shape[0], "out_features": projection_DxW.shape[1]}
    modules = {
        f"{TYPE}Transformer": transformer,
        f"{TYPE}Dense": dense | {"bias": False, "activation_function": _IDENTITY} | tokens,
        f"sentence_transformers.multi_vector_encoder.modules.{_MASK}": {
            _SKIPPED: embedding.skip_words
        },
        f"{TYPE}Normalize": tokens,
    }
    similarity = embedding.similarity.replace("_", "")
    own = {"model_type": "MultiVectorEncoder", "similarity_fn_name": similarity}
    folder = write_modules(embedding, modules, path, own)[1]
    weight_WxD = np.ascontiguousarray(projection_DxW.T)
    save_file({"linear.weight": weight_WxD}, folder / SAFETENSORS, metadata={"format": "pt"})
