"""Sparse and multi-vector models in the forms in which they are released, and their vectors."""

import json
import shutil
import warnings
from contextlib import closing
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken

import bert_jax
from bert_jax.config.finetuning import filled_in
from bert_jax.heads import load_head
from bert_jax.interop import formats
from bert_jax.interop.weights import complete_weights, unflatten
from bert_jax.tokenizers.wordpiece import WordPieceTokenizer
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.state import TrainState
from tests.interop.small_bert import MODEL, TOKENS, edit_json, edit_tensors, make_pretrained

QUERIES = ["a bad face", "The head is: abed!", "dig", "a hi j abed fed badge"]
DOCUMENTS = ["The head i j, abed.", "A fed badge faded. " * 4, "", "dig", "a hi; bade!"]
LIBRARY, SETTINGS = "config_sentence_transformers.json", "sentence_bert_config.json"
MARKERS = "[unused0]", "[unused1]"
WIDTH = 8
_TYPES = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "MLMTransformer": "sentence_transformers.sparse_encoder.models.MLMTransformer",
    "SpladePooling": "sentence_transformers.sparse_encoder.models.SpladePooling",
    "Static": "sentence_transformers.sparse_encoder.models.SparseStaticEmbedding",
    "Router": "sentence_transformers.models.Router",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "PyLate": "pylate.models.Dense.Dense",
    "MultiVectorMask": (
        "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
    ),
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
IDENTITY = "torch.nn.modules.linear.Identity"
_ON_TOKENS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}


def write_encoder(path: Path, terms=("masked_lm",), family="bert", tokenizer=None):
    """Writes a directory of transformers; its tokenizer knows [unused0], punctuation and "[Q] "."""
    if tokenizer is None:
        tokens = [*TOKENS, *MARKERS, *",!;"]
        tokenizer = WordPieceTokenizer(tokens, lowercase=True, max_input_chars_per_word=100)
        added = (AddedToken(text) for text in ("[Q] ", "[D] "))
        tokenizer = tokenizer.with_added(dict(enumerate(added, len(tokens))), path)
    sizes = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 70}
    if family == "modernbert":
        # A [MASK] that sees no token of its query would have an undefined state.
        sizes["local_attention"] = 40
    pretrained = make_pretrained(terms=terms, family=family, **sizes)
    # With larger weights, all tokens would have about the same vector.
    for name, value in pretrained.weights.items():
        is_table = "embeddings" in name and value.ndim > 1
        pretrained.weights[name] = name.endswith("/scale") + value * (1 if is_table else 0.3)
    pretrained.tokenizer = tokenizer
    formats.write(pretrained, path, "huggingface")
    return path


def matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def write_modules(
    path: Path, modules: dict, library: dict | None = None, settings: dict | None = None
):
    """Writes the files of modules; the values are the folder, the config and the tensors."""
    listed = []
    for i, (kind, (folder, config, tensors)) in enumerate(modules.items()):
        kind = kind.rstrip("0123456789")
        listed.append({"idx": i, "name": str(i), "path": folder, "type": _TYPES[kind]})
        write_module(path / folder, config, tensors)
    (path / "modules.json").write_text(json.dumps(listed))
    (path / LIBRARY).write_text(json.dumps(library))
    (path / SETTINGS).write_text(json.dumps({"max_seq_length": 24} | (settings or {})))
    return path


def write_module(folder: Path, config: dict, tensors: dict | None = None) -> None:
    folder.mkdir(exist_ok=True)
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    if tensors:
        save_file(tensors, folder / "model.safetensors")


def splade(path: Path, transformer="MLMTransformer", library=None, settings=None, **pooling):
    """A SPLADE, by default as version 5 of sentence-transformers writes it."""
    usual = {"pooling_strategy": "max", "activation_function": "relu"}
    modules = {
        transformer: ("", {}, {}),
        "SpladePooling": ("1_SpladePooling", usual | pooling, {}),
    }
    return write_modules(path, modules, {"model_type": "SparseEncoder"} | (library or {}), settings)


def inference_free(path: Path, form: str = "6"):
    """A model with static queries: of sentence-transformers 6, or OpenSearch's older ones."""
    root = "document_0_Transformer" if form == "6" else ""
    query = "query_0_SparseStaticEmbedding" if form == "6" else "query_0_IDF"
    model_files = [file for file in path.iterdir() if file.is_file()]
    weights_V = np.abs(matrix(1, json.loads((path / "config.json").read_text())["vocab_size"])[0])
    if root:
        (path / root).mkdir()
        for file in model_files:
            file.rename(path / root / file.name)
    settings = {"max_seq_length": 24, "transformer_task": "fill-mask"}
    (path / root / SETTINGS).write_text(json.dumps(settings))
    write_module(path / "document_1_SpladePooling", {"activation_function": "log1p_relu"})
    tensors = {} if form == "idf" else {"weight": weights_V}
    write_module(path / query, {"frozen": False}, tensors)
    for file in model_files:
        if "token" in file.name or file.name == "vocab.txt":
            shutil.copy(path / root / file.name, path / query)
    if form == "idf":
        tokens = (path / "vocab.txt").read_text().splitlines()
        idf = {token: float(x) for token, x in zip(tokens, weights_V, strict=False)}
        (path / "idf.json").write_text(json.dumps(idf | {"no token": 3.0}))
    kinds = {query: "Static", root: "Transformer", "document_1_SpladePooling": "SpladePooling"}
    router = {
        "types": {name: _TYPES[kind] for name, kind in kinds.items()},
        "structure": {"query": [query], "document": [root, "document_1_SpladePooling"]},
        "parameters": {"default_route": "document", "allow_empty_key": True},
    }
    (path / "router_config.json").write_text(json.dumps(router))
    modules = [{"idx": 0, "name": "0", "path": "", "type": _TYPES["Router"]}]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / LIBRARY).write_text(json.dumps({"model_type": "SparseEncoder"}))
    return path


def late_interaction(path: Path, settings=None, library=None, dense=None, mask=None):
    """A model as version 6 of sentence-transformers writes it.

    Args:
      dense: Configs and tensors of the layers of the projection.
    """
    modules = {"Transformer": ("", {}, {})}
    for i, (config, tensors) in enumerate(dense or [({}, linear(WIDTH, MODEL["hidden_size"]))], 1):
        rows, columns = tensors["linear.weight"].shape
        usual = {"in_features": columns, "out_features": rows, "bias": False}
        usual |= {"activation_function": IDENTITY} | _ON_TOKENS
        modules[f"Dense{i}"] = (f"{i}_Dense", usual | config, tensors)
    words = {"skiplist_words": [".", ",", ";"], "skiplist_tasks": ["document"]}
    modules["MultiVectorMask"] = ("8_MultiVectorMask", words | (mask or {}), {})
    modules["Normalize"] = ("9_Normalize", _ON_TOKENS, {})
    library = {"model_type": "MultiVectorEncoder"} | (library or {})
    return write_modules(path, modules, library, expanded(False) if settings is None else settings)


def expanded(attend: bool) -> dict:
    expansion = {"strategy": "fixed", "attend": attend, "length": 16}
    return {"query_expansion": expansion, "document_length": 20}


def linear(rows: int, columns: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"linear.weight": matrix(rows, columns, seed)}


def pylate(path: Path, leave_out=(), **library):
    """A model as PyLate writes it."""
    config = {"in_features": MODEL["hidden_size"], "out_features": WIDTH, "bias": False}
    config["activation_function"] = IDENTITY
    dense = "1_Dense", config, linear(WIDTH, MODEL["hidden_size"])
    usual = {"model_type": "ColBERT", "similarity_fn_name": "MaxSim", "prompts": {}}
    usual |= {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 16}
    usual |= {"document_length": 20, "attend_to_expansion_tokens": False}
    found = {key: value for key, value in (usual | library).items() if key not in leave_out}
    return write_modules(path, {"Transformer": ("", {}, {}), "PyLate": dense}, found)


def colbert(path: Path, **metadata):
    """A model as Stanford's ColBERT writes it."""
    edit_json(path / "config.json", architectures=["HF_ColBERT"])
    weights = linear(WIDTH, MODEL["hidden_size"])
    edit_tensors(path, lambda tensors: tensors.update(weights))
    if metadata:
        (path / "artifact.metadata").write_text(json.dumps(metadata))
    return path


def colbert_small(path: Path):
    """A ColBERT with PyLate's files beside it, and its encoder twice, as answerai's."""
    (path / "0_Transformer").mkdir()
    for file in list(path.iterdir()):
        if file.is_file():
            shutil.copy(file, path / "0_Transformer")
    pylate(path, query_prefix="[unused0] ", document_prefix="[unused1] ")
    modules = json.loads((path / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (path / "modules.json").write_text(json.dumps(modules))
    shutil.move(path / SETTINGS, path / "0_Transformer")
    return colbert(path, query_maxlen=16, doc_maxlen=20, dim=WIDTH)


SPARSE_FORMS = {
    "splade": splade,
    "sum": lambda path: splade(
        path, pooling_strategy="sum", activation_function="log1p_relu", word_embedding_dimension=35
    ),
    "version_6": lambda path: splade(
        path, "Transformer", {"similarity_fn_name": "dot"}, {"transformer_task": "fill-mask"}
    ),
    "inference_free": inference_free,
    "opensearch": lambda path: inference_free(path, "opensearch"),
}
_LAYERS = [
    ({}, linear(20, MODEL["hidden_size"], 1)),
    ({"use_residual": True}, linear(20, 20, 2)),
    ({"use_residual": True}, linear(WIDTH, 20, 3) | {"residual.weight": matrix(WIDTH, 20, 4)}),
]
MULTI_VECTOR_FORMS = {
    "masked": late_interaction,
    "attended": lambda path: late_interaction(
        path, expanded(True), {"similarity_fn_name": "meanmaxsim", "prompts": {"query": "the "}}
    ),
    "no_expansion": lambda path: late_interaction(path, {"query_length": 6}),
    "three_layers": lambda path: late_interaction(path, dense=_LAYERS),
    "pylate": pylate,
    "pylate_without_expansion": lambda path: pylate(
        path, do_query_expansion=False, skiplist_words=["the"], prompts={"query": "a "}
    ),
    "pylate_1": lambda path: pylate(
        path, ("model_type", "attend_to_expansion_tokens"), attend_to_mask_tokens=True
    ),
    "colbert": colbert,
    "colbert_with_metadata": lambda path: colbert(
        path,
        query_maxlen=16,
        doc_maxlen=20,
        mask_punctuation=False,
        query_token_id="[unused1]",
        doc_token_id="[unused0]",
        attend_to_mask_tokens=True,
    ),
    "colbert_small": colbert_small,
}


def write_run(path: Path, head: str, **embedding):
    """Writes the work directory of a run that has not trained yet."""
    values = {f"embedding.{key}": value for key, value in embedding.items()}
    pretrained = formats.read(write_encoder(path / "initial"))
    config = bert_jax.load_config(f"finetune/{head}")
    config.update_from_flattened_dict({"init_from": "initial", "data.max_seq_length": 24} | values)
    config = filled_in(config, pretrained.model, head, (), "bert", dtype="float32")
    model = load_head(head).make_model(pretrained.model_config, 0, config, pretrained.tokenizer)
    weights, _ = complete_weights(model, pretrained.weights, seed=0)
    params = unflatten(weights, pretrained.model_config)
    with closing(Checkpointer(path / workdir.CHECKPOINTS)) as checkpoints:
        checkpoints.save(0, TrainState(jnp.zeros([], jnp.int32), params, opt_state=()), {})
    pretrained.tokenizer.save(path / workdir.TOKENIZER)
    (path / workdir.CONFIG).write_text(json.dumps(config.to_dict()))
    return path


RUNS = {
    "sparse": {},
    "static_queries": {"static_queries": True, "query_flops": 0.0, "double_log": True},
    "multi_vector": {"width": WIDTH, "query_length": 16},
    "mean_maxsim": {"width": WIDTH, "query_length": 8, "expansion": "none", "mean_maxsim": True},
}


def run(path: Path, name: str) -> Path:
    head = "multi_vector" if "width" in RUNS[name] else "sparse"
    return write_run(path, head, **RUNS[name])


def encoded(path: Path):
    """Computes the vectors of QUERIES and DOCUMENTS, and their similarities [4, 5]."""
    with warnings.catch_warnings(action="ignore"):
        bert = bert_jax.load(path)
        both = bert.encode_query(QUERIES), bert.encode_document(DOCUMENTS)
    return *both, bert.similarity(*both)
