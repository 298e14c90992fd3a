"""Reads and writes how a directory of sentence-transformers turns texts into vectors or scores."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.interop.embedding import LIBRARY_DEFAULTS, SIMILARITIES, Embedding

MODULES, _SETTINGS = "modules.json", "sentence_bert_config.json"
# The file of a Router; older versions, which call it Asym, have a config.json.
ROUTER = "router_config.json"
_LIBRARY, _TOKENIZER = "config_sentence_transformers.json", "tokenizer_config.json"
_MODE = "pooling_mode_"
_POOLINGS = {"cls_token": "cls", "mean_tokens": "mean", "cls": "cls", "mean": "mean"}
# The names of the oldest versions, which newer ones read too.
TYPE = "sentence_transformers.models."
STATIC = "SparseStaticEmbedding"
# Modules of older versions.
_RENAMED = {"MLMTransformer": "Transformer", "IDF": STATIC}
# The names of similarities in files, the first by default; see `Embedding.similarity`.
_SIMILARITIES = {
    "dense": dict(zip(SIMILARITIES, SIMILARITIES, strict=True)),
    "sparse": {"dot": "dot"},
    "multi_vector": {"maxsim": "maxsim", "meanmaxsim": "mean_maxsim"},
}
# What turns the logit of a cross-encoder into a score, as in `Pretrained.activation`.
_ACTIVATIONS = {
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "identity": "torch.nn.modules.linear.Identity",
}


def read_modules(path: Path) -> list[tuple[str, Path]]:
    """Lists the modules of a directory, their kinds and folders; none if it is not the library's.

    A Router stands for the modules of its route, or of both routes if the weights of queries are
    static. A ColBERT has none: the files of PyLate beside it may name a second copy of its weights.
    """
    if is_colbert(path):
        return []
    found = []
    modules = json.loads(files.read_whole(path / MODULES)) if (path / MODULES).exists() else []
    for module in modules:
        folder = files.inside(path, module["path"], path / MODULES)
        parts = {folder: module["type"]}
        if module["type"].endswith((".Router", ".Asym")):
            named_by = folder / (ROUTER if (folder / ROUTER).exists() else "config.json")
            router = files.read_json(named_by)
            routes, types = dict(router["structure"]), router["types"]
            static: list[str] = []
            if [_kind(types[name]) for name in routes.get("query", [])] == [STATIC]:
                static = routes.pop("query")
            names, *others = routes.values()
            if any(other != names for other in others):
                raise UserError(
                    f"{named_by}: the routes {', '.join(routes)} have different "
                    "modules: save those of one route as a model of its own"
                )
            parts = {files.inside(folder, name, named_by): types[name] for name in static + names}
        found += [(_kind(type), part) for part, type in parts.items()]
    return found


def _kind(type: str) -> str:
    last = type.rpartition(".")[2]
    return _RENAMED.get(last, last)


def is_colbert(path: Path) -> bool:
    """Returns whether a directory has the weights of Stanford's ColBERT."""
    return "HF_ColBERT" in (
        files.read_json(path / "config.json", optional=True).get("architectures") or ()
    )


def encoder_folder(path: Path) -> Path:
    """Finds the folder of the weights: `path` itself, or in older versions 0_Transformer."""
    return next((folder for kind, folder in read_modules(path) if kind == "Transformer"), path)


def read_embedding(path: Path) -> tuple[Embedding, list[str]]:
    """Reads the settings of a directory; returns them, and a warning for each unsupported part.

    The settings of the modules of a sparse or multi-vector model are read by `read_sparse` and
    `read_multi_vector`.
    """
    modules, encoder = read_modules(path), encoder_folder(path)
    if not modules and not is_colbert(path):
        return Embedding(), []
    library = _read_library(path / _LIBRARY)
    kind = _kind_of_vectors(path, dict(modules), library)
    names, warnings = _SIMILARITIES[kind], []
    usual = next(iter(names))
    similarity = files.read_json(path / _LIBRARY, optional=True).get("similarity_fn_name") or usual
    if similarity.lower() not in names:
        warnings.append(f"its similarity, {similarity}, is not supported: {usual} is used")
        similarity = usual
    if kind != "dense":
        library.pop("model_type", None)
        library["similarity_fn_name"] = names[similarity.lower()]
    name = library["default_prompt_name"]
    embedding = Embedding(
        max_length=_read_length(encoder),
        lowercase=bool(read_settings(encoder).get("do_lower_case")),
        prompt=library["prompts"][name] if name else "",
        similarity=names[similarity.lower()],
        dimension=library.get("truncate_dim"),
        kind=kind,
        library=library,
    )
    for module, folder in modules if kind == "dense" else ():
        if module == "Pooling":
            config = files.read_json(folder / "config.json", optional=True)
            mode = _pooling_mode(config) if (folder / "config.json").exists() else None
            embedding = embedding._replace(include_prompt=config.get("include_prompt", True))
            embedding = embedding._replace(pooling=_POOLINGS.get(mode))
            if embedding.pooling is None:
                # Copies of a model often have only the top-level files. Training needs no pooling.
                name = f"{folder.relative_to(path)}/config.json"
                what = f"its pooling, {mode}, is not supported" if mode else f"it has no {name}"
                warnings.append(f"{what}: name the pooling of sentence embeddings")
        elif module == "Normalize":
            embedding = embedding._replace(normalize=True)
        elif module not in ("Transformer", "Dropout"):
            embedding = embedding._replace(pooling=None)
            what = f"its module {module} is not supported"
            warnings.append(f"{what}: name a pooling to go without it")
    return embedding, [f"{path}: {warning}" for warning in warnings]


def _kind_of_vectors(path: Path, modules: Mapping[str, Path], library: Mapping[str, Any]) -> str:
    is_named = library.get("model_type") in ("MultiVectorEncoder", "ColBERT")
    # PyLate has not always named it.
    if is_named or "query_prefix" in library or is_colbert(path):
        return "multi_vector"
    return "sparse" if "SpladePooling" in modules else "dense"


def checked(
    settings: Mapping[str, Any], key: str, usual: Any, allowed: Sequence[Any], of: Any
) -> Any:
    """Returns a value of settings `of` a file or a folder, which must be one of those allowed."""
    if (value := settings.get(key, usual)) not in allowed:
        right = " or ".join(map(repr, allowed))
        raise UserError(f"{of}: {key} is {value!r}; it must be {right}")
    return value


def read_cross_encoder(path: Path) -> tuple[str, int | None]:
    """Reads the activation and the length of a directory with a head of one output.

    The activation is as in `Pretrained`, and found as in sentence-transformers 6, which takes only
    what is in torch.
    """
    encoder = encoder_folder(path)
    config = files.read_json(encoder / "config.json")
    library = files.read_json(path / _LIBRARY, optional=True) if read_modules(path) else {}
    # The key of versions before 4.
    older = config.get("sbert_ce_default_activation_function")
    own = (config.get("sentence_transformers") or {}).get("activation_fn", older)
    named = (str(name) for name in (library.get("activation_fn"), own))
    name = next((name for name in named if name.startswith("torch.")), "")
    last = name.rpartition(".")[2].lower()
    return last if last in _ACTIVATIONS else name, _read_length(encoder)


def activation_path(activation: str) -> str:
    """Returns the path in torch of an activation as in `Pretrained`."""
    return _ACTIVATIONS.get(activation, activation)


def read_settings(encoder: Path) -> dict[str, Any]:
    # The file of an older version has the name of the family: sentence_roberta_config.json.
    named = sorted(encoder.glob("sentence_*_config.json"))
    return files.read_json(named[0]) if named else {}


def _read_length(encoder: Path) -> int | None:
    tokenizer = files.read_json(encoder / _TOKENIZER, optional=True)
    # sentence-transformers 6 writes only the tokenizer's, which is about 1e30 without a limit.
    length = read_settings(encoder).get("max_seq_length") or tokenizer.get("model_max_length")
    return int(length) if length else None


def _read_library(path: Path) -> dict[str, Any]:
    """Reads the settings in the library's own file, where prompts may be null."""
    library = LIBRARY_DEFAULTS | files.read_json(path, optional=True)
    prompts = library["prompts"] or {}
    if not isinstance(prompts, dict) or not {*map(type, prompts.values())} <= {str, type(None)}:
        raise UserError(f"{path}: prompts is {prompts!r}; it must be a text for each name")
    library["prompts"] = {name: text or "" for name, text in prompts.items()}
    name, dimension = library["default_prompt_name"], library.get("truncate_dim")
    if name and name not in prompts:
        raise UserError(f"{path}: default_prompt_name is {name!r}, which is not one of prompts")
    if dimension is not None and (type(dimension) is not int or dimension < 1):
        raise UserError(f"{path}: truncate_dim is {dimension!r}; it must be null or at least 1")
    return library


def write_embedding(embedding: Embedding, width: int, path: Path) -> None:
    """Writes settings with a pooling and a length beside the files of an encoder of this width."""
    modes = ("cls_token", "mean_tokens")
    pooling = {f"{_MODE}{mode}": _POOLINGS[mode] == embedding.pooling for mode in modes}
    config = {"word_embedding_dimension": width, **pooling}
    if not embedding.include_prompt:
        config["include_prompt"] = False
    modules = {f"{TYPE}Transformer": {}, f"{TYPE}Pooling": config}
    if embedding.normalize:
        modules[f"{TYPE}Normalize"] = {}
    write_modules(embedding, modules, path, own={"truncate_dim": embedding.dimension})


def write_cross_encoder(embedding: Embedding, activation: str, path: Path) -> None:
    """Writes settings beside the files of a model with one output, for the class CrossEncoder."""
    scoring = {
        "model_type": "CrossEncoder",
        "similarity_fn_name": None,
        "activation_fn": activation_path(activation),
    }
    task = {"transformer_task": "sequence-classification", "module_output_name": "scores"}
    write_modules(embedding, {f"{TYPE}Transformer": task}, path, own=scoring)


def write_modules(
    embedding: Embedding,
    modules: Mapping[str, Mapping[str, Any]],
    path: Path,
    own: Mapping[str, Any],
) -> list[Path]:
    """Writes the files of modules, the first of which is the Transformer; returns their folders.

    Args:
      modules: The settings of each by its type.
      own: More settings of the library; those that are None are left out.
    """
    listed = [
        {"idx": i, "name": str(i), "path": f"{i}_{_kind(type)}" if i else "", "type": type}
        for i, type in enumerate(modules)
    ]
    folders = [path / module["path"] for module in listed]
    for folder, config in list(zip(folders, modules.values(), strict=True))[1:]:
        folder.mkdir()
        if config:
            files.write_json(folder / "config.json", config)
    settings = {"max_seq_length": embedding.max_length, "do_lower_case": embedding.lowercase}
    files.write_json(path / _SETTINGS, settings | next(iter(modules.values())))
    # Without this file, the library would look for it on the Hugging Face Hub.
    library = embedding.library | own
    files.write_json(path / _LIBRARY, {k: v for k, v in library.items() if k not in own or v})
    files.write_whole(path / MODULES, json.dumps(listed, indent=2).encode())
    return folders


def _pooling_mode(config: dict[str, Any]) -> str:
    """Reads the mode from the config of a Pooling module; newer versions use a single key."""
    chosen = [key.removeprefix(_MODE) for key, on in config.items() if key.startswith(_MODE) and on]
    return str(config.get("pooling_mode") or " and ".join(chosen))
