"""Reads and writes sparse models (SPLADE) as sentence-transformers has them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.interop.embedding import Embedding
from bert_jax.interop.families import load_family
from bert_jax.interop.huggingface import SAFETENSORS, is_huggingface, open_weights
from bert_jax.interop.pretrained import QUERY_WEIGHTS, Pretrained
from bert_jax.interop.sentence_transformers import (
    MODULES,
    ROUTER,
    STATIC,
    TYPE,
    checked,
    read_modules,
    write_modules,
)
from bert_jax.interop.tokenizer_files import write_huggingface_tokenizer

_TYPE = "sentence_transformers.sparse_encoder.models."
_FOLDER = f"query_0_{STATIC}"
# Whether the logarithm is applied twice, by `activation_function`.
_IS_DOUBLE_LOG = {"relu": False, "log1p_relu": True}
# OpenSearch's weights of queries, by their tokens.
_IDF = "idf.json"


def read_sparse(pretrained: Pretrained, path: Path, with_weights: bool) -> None:
    """Completes a sparse model: its settings and, with weights, those of static queries."""
    checked(pretrained.embedding.library, "max_active_dims", None, (None,), path)
    folders = dict(read_modules(path))
    if others := folders.keys() - {"Transformer", "Dropout", "SpladePooling", STATIC}:
        raise UserError(f"{path}: its module {min(others)} is not supported in a sparse model")
    file = folders["SpladePooling"] / "config.json"
    config = files.read_json(file)
    activation = checked(config, "activation_function", "relu", tuple(_IS_DOUBLE_LOG), file)
    pretrained.embedding = pretrained.embedding._replace(
        pooling=checked(config, "pooling_strategy", "max", ("max", "sum"), file),
        double_log=_IS_DOUBLE_LOG[activation],
        static_queries=STATIC in folders,
    )
    if with_weights and not any(name.startswith("mlm/") for name in pretrained.weights):
        raise UserError(f"{path} is a sparse model, but its weights have no masked-LM head")
    if with_weights and STATIC in folders:
        pretrained.weights[QUERY_WEIGHTS] = _query_weights(pretrained, path, folders[STATIC])


def _query_weights(pretrained: Pretrained, path: Path, folder: Path) -> np.ndarray:
    weights_V = np.zeros(pretrained.model["vocab_size"], np.float32)
    if is_huggingface(folder):
        with open_weights(folder) as (_, tensors):
            found_V = tensors["weight"].read()[: len(weights_V)]
        weights_V[: len(found_V)] = found_V
        return weights_V
    ids = pretrained.needed_tokenizer().ids
    file = (folder if (folder / _IDF).exists() else path) / _IDF
    for token, weight in files.read_json(file).items():
        if token in ids:
            weights_V[ids[token]] = weight
    return weights_V


def write_sparse(
    pretrained: Pretrained, embedding: Embedding, query_weights_V: np.ndarray | None, path: Path
) -> None:
    """Writes settings beside the files of a masked LM, for the class SparseEncoder."""
    activations = {double: name for name, double in _IS_DOUBLE_LOG.items()}
    pooling = {
        "pooling_strategy": embedding.pooling,
        "activation_function": activations[embedding.double_log],
        "word_embedding_dimension": pretrained.model["vocab_size"],
    }
    # With the type Transformer, the library would pool the states instead of the logits.
    modules = {f"{_TYPE}MLMTransformer": {}, f"{_TYPE}SpladePooling": pooling}
    own = {"model_type": "SparseEncoder", "similarity_fn_name": embedding.similarity}
    *_, pooling_folder = write_modules(embedding, modules, path, own)
    if query_weights_V is None:
        return
    folder = path / _FOLDER
    folder.mkdir()
    tokenizer, family = pretrained.needed_tokenizer(), load_family(pretrained.family)
    write_huggingface_tokenizer(tokenizer, folder, family, embedding.max_length)
    save_file({"weight": query_weights_V}, folder / SAFETENSORS, metadata={"format": "pt"})
    files.write_json(folder / "config.json", {"frozen": False})
    names = dict(zip(("", pooling_folder.name), modules, strict=True))
    router = {
        "types": names | {_FOLDER: _TYPE + STATIC},
        "structure": {"query": [_FOLDER], "document": list(names)},
        "parameters": {"default_route": "document", "allow_empty_key": True},
    }
    files.write_json(path / ROUTER, router)
    module = {"idx": 0, "name": "0", "path": "", "type": f"{TYPE}Router"}
    files.write_whole(path / MODULES, json.dumps([module], indent=2).encode())
