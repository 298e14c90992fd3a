"""Work directories of bert_jax as the source or the target of a conversion."""

import dataclasses
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from etils import epath
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.config.stage_keys import OWN_MODEL_KEYS
from bert_jax.heads import load_head
from bert_jax.interop.embedding import TERMS, Embedding
from bert_jax.interop.families import load_family
from bert_jax.interop.model_keys import MODEL_KEYS, read_terms
from bert_jax.interop.pretrained import Pretrained, read_training, write_training
from bert_jax.interop.weights import ENCODER, flatten, unflatten
from bert_jax.models import BertConfig
from bert_jax.models.pretraining_model import PreTrainingModel
from bert_jax.objectives.language_model import FILLED_TEXTS
from bert_jax.objectives.terms import make_terms
from bert_jax.text.named_sources import join_inputs, split_inputs
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.metrics import EVALUATION_PREFIX, read_metrics
from bert_jax.training.stages import model_keys, resolve_stages, stage_of
from bert_jax.training.state import TrainState, abstract_params

_CHECKPOINTS = (workdir.BEST, workdir.CHECKPOINTS)


def is_native(path: Path | epath.Path) -> bool:
    """Returns whether a path is a work directory with checkpoints, or one of its checkpoints."""
    directory = _split(path)[0]
    return any((directory / name).is_dir() for name in _CHECKPOINTS)


def read_native(
    path: Path | epath.Path, family_name: str = "", with_weights: bool = True
) -> Pretrained:
    """Reads the best or newest checkpoint of a work directory, or the one that `path` names."""
    directory, folder, step = _split(path)
    config = workdir.load_config(directory)
    described = _described(path, directory, config, family_name or config.family)
    if not with_weights:
        return described
    model_config = BertConfig(**config.model)
    model: nn.Module = PreTrainingModel(model_config, make_terms(described.terms))
    is_finetuned = workdir.is_finetuning(config)
    if is_finetuned:
        model = load_head(config.head).make_model(model_config, len(config.labels), config)
    abstract = nn.unbox(abstract_params(model))
    with closing(Checkpointer(folder, read_only=True)) as checkpoints:
        step, params = checkpoints.restore_params(abstract, step)
    weights, own_keys = flatten(params, model_config), {}
    if is_finetuned and not described.head:
        # Other layers beside the encoder are only for training.
        kept = (ENCODER, *load_head(config.head).vector_weights)
        weights = {name: x for name, x in weights.items() if name.startswith(kept)}
    if not is_finetuned:
        own_keys = dict(model_keys(resolve_stages(config), step))
    has_tokenizer = (directory / workdir.TOKENIZER).exists()
    return dataclasses.replace(
        described,
        model=described.model | own_keys,
        weights=weights,
        tokenizer=tokenizers.load(directory / workdir.TOKENIZER) if has_tokenizer else None,
        training=_training(directory, step, config),
    )


def _described(
    path: Path | epath.Path, directory: Path | epath.Path, config: ConfigDict, family_name: str
) -> Pretrained:
    values = config_lib.to_dict(config)
    terms = read_terms({"config": values}, load_family(family_name), config.model.causal)
    head: dict[str, Any] = {}
    if workdir.is_finetuning(config):
        record = load_head(config.head)
        multi_label = config.task == "table" and config.table.multi_label
        name, labels = record.stored_as or config.head, tuple(config.labels)
        head = {"head": name, "labels": labels, "multi_label": multi_label}
        if record.activation:
            head["activation"] = record.activation(config)
        if record.embedding:
            if not record.stored_as:
                # The head of embeddings has no weights: the model is an encoder.
                head = {}
            head["embedding"] = Embedding(**record.embedding(config))
            terms = TERMS.get(head["embedding"].kind, terms)
    is_converted = not (directory / workdir.CORPUS).exists()
    return Pretrained(
        source=str(path),
        model={key: config.model[key] for key in MODEL_KEYS},
        training=read_training(directory) if is_converted else {"config": values},
        family=family_name,
        terms=terms,
        **head,
    )


def write_native(pretrained: Pretrained, path: Path | epath.Path) -> None:
    """Writes a work directory for `config.init_from`, `evaluate` and `predict`."""
    config = config_lib.default_config()
    trained = pretrained.training.get("config")
    if trained and not workdir.is_finetuning(trained):
        config = config_lib.from_dict(trained)
        for stage in config.train.stages:
            # The keys of the model are those of the weights.
            stage.update(dict.fromkeys(OWN_MODEL_KEYS, 0.0))
    else:
        length = min(512, pretrained.model["max_position_embeddings"])
        config.train.stages = (config_lib.stage(max_seq_length=length),)
        if pretrained.model["causal"]:
            config.data.corruption = "none"
    config.model.update({key: pretrained.model[key] for key in MODEL_KEYS})
    config.family = pretrained.family
    if config.objective.terms != pretrained.terms:
        config.objective.terms = pretrained.terms
        config.objective.weights = (1.0,) * len(pretrained.terms)
    config.workdir, config.data.store, config.data.vocab = "", "", ""
    if pretrained.tokenizer:
        config.data.update(pretrained.tokenizer.config_keys)
        pretrained.tokenizer.save(path / workdir.TOKENIZER)
    model_config = BertConfig(**config.model)
    params = unflatten(pretrained.weights, model_config)
    state = TrainState(jnp.zeros([], jnp.int32), params, opt_state=())
    pretrained.weights = {}
    with closing(Checkpointer(path / workdir.CHECKPOINTS)) as checkpoints:
        checkpoints.save(0, state, {})
        # orbax writes from its own copy.
        del params, state
    write_training(pretrained, path)
    files.write_json(path / workdir.CONFIG, config_lib.to_dict(config))


def _split(path: Path | epath.Path) -> tuple[Path | epath.Path, Path | epath.Path, int | None]:
    """Splits a path into the work directory, the folder of its checkpoints, and any step."""
    if path.parent.name in _CHECKPOINTS and path.name.isdecimal():
        return path.parent.parent, path.parent, int(path.name)
    return path, workdir.checkpoint_folder(path), None


def _training(directory: Path | epath.Path, step: int, config: ConfigDict) -> dict[str, Any]:
    """Describes how a checkpoint was trained, from the files of its work directory."""
    if not (directory / workdir.CORPUS).exists():
        # Converted weights have a file of their own for this.
        return read_training(directory)
    corpus = workdir.read_corpus(directory)
    # The names of the files are private; their number is enough.
    corpus["sources"] = len(corpus.pop("sources", []))
    corpus.pop("first_dropped", None)
    corpus["options"] = _without_folders(corpus.get("options", {}))
    results: dict[str, Any] = {}
    for line in read_metrics(directory):
        scores = [key for key in line if key.startswith(EVALUATION_PREFIX)]
        if line["step"] == step and scores:
            results = {key.removeprefix(EVALUATION_PREFIX): line[key] for key in scores}
    # Excerpts of held-out text stay private, as the names of files do.
    results.pop(FILLED_TEXTS, None)
    if results and not workdir.is_finetuning(config):
        # The scores depend on the stage's sequence length.
        results["max_seq_length"] = stage_of(resolve_stages(config), step).max_seq_length
    values = _without_folders(config_lib.to_dict(config))
    training = {"step": step, "config": values, "corpus": corpus, "results": results}
    return training | files.read_json(directory / workdir.INITIAL_TRAINING, optional=True)


def _without_folders(values: Any) -> Any:
    """Removes the folders of every path in nested values, because they are private.

    A value such as `data.input` may hold several paths. The name in NAME=PATH stays.
    """
    if isinstance(values, dict):
        return {key: _without_folders(value) for key, value in values.items()}
    if isinstance(values, list):
        return [_without_folders(value) for value in values]
    if not isinstance(values, str) or "/" not in values:
        return values
    names = [re.sub(r"^([\w-]+=)?.*?([^/]*)/*$", r"\1\2", path) for path in split_inputs([values])]
    return join_inputs(names)
