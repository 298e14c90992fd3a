"""bert_jax's own directories, as the source or the end of a conversion."""

from contextlib import closing
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from etils import epath

from bert_jax import config as config_lib
from bert_jax import files, tokenizers, workdir
from bert_jax.config.finetuning import feature_layers
from bert_jax.errors import UserError
from bert_jax.interop.pretrained import MODEL_KEYS, Pretrained, read_training, write_training
from bert_jax.interop.weights import flatten, unflatten
from bert_jax.models import BertConfig, PreTrainingModel
from bert_jax.models.task_models import make_task_model
from bert_jax.objectives.terms import BERT_TERMS, make_terms
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.metrics import read_metrics
from bert_jax.training.stages import resolve_stages
from bert_jax.training.state import TrainState, init_params

_EVALUATION = "eval_"
# Fine-tuning's best is what is wanted of it.
_CHECKPOINTS = (workdir.BEST, workdir.CHECKPOINTS)


def is_native(path: Path | epath.Path) -> bool:
    """Whether it is a work directory with checkpoints, or WORKDIR/checkpoints/STEP."""
    directory = _split(path)[0]
    return any((directory / name).is_dir() for name in _CHECKPOINTS)


def read_native(path: Path | epath.Path) -> Pretrained:
    """Reads the best or newest checkpoint of a work directory, or the one that is named.

    Raises:
      UserError: there is none, or it is damaged.
    """
    directory, folder, step = _split(path)
    config = workdir.load_config(directory)
    model_config = BertConfig.from_dict(config.model, scan_layers=config.scan_layers)
    head: dict[str, Any] = {}
    terms = make_terms(config_lib.objective_terms(config) if "objective" in config else BERT_TERMS)
    model: nn.Module = PreTrainingModel(model_config, terms)
    if workdir.is_finetuning(config):
        head = {
            "head": config.head,
            "labels": tuple(config.labels),
            "features": feature_layers(config),
            "bilstm_size": config.train.bilstm_size,
        }
        num_labels = len(config.labels)
        model = make_task_model(
            config.head, num_labels, model_config, head["features"], head["bilstm_size"]
        )
    abstract = nn.unbox(jax.eval_shape(lambda: init_params(model, 0)))
    checkpoints = Checkpointer(folder, read_only=True)
    with closing(checkpoints):
        restored = checkpoints.restore_params(abstract, step)
    if restored is None:
        raise UserError(f"{directory} has no checkpoint yet")
    step, params = restored
    tokenizer = None
    if (directory / workdir.TOKENIZER).exists():
        tokenizer = tokenizers.load(directory / workdir.TOKENIZER)
    return Pretrained(
        source=str(path),
        model={key: config.model[key] for key in MODEL_KEYS},
        weights=flatten(params, model_config),
        tokenizer=tokenizer,
        warnings=[],
        training=_training(directory, step),
        **head,
    )


def write_native(pretrained: Pretrained, path: Path | epath.Path) -> None:
    """Writes a directory to be named by `config.init_from`, or evaluated as it is."""
    config = config_lib.default_config()
    trained = pretrained.training.get("config")
    if trained and not workdir.is_finetuning(trained):
        config = config_lib.from_dict(trained)
    config.model.update({key: pretrained.model[key] for key in MODEL_KEYS})
    config.workdir, config.data.store, config.data.vocab = "", "", ""
    if pretrained.tokenizer:
        options = pretrained.tokenizer.options
        config.data.tokenizer = options["kind"]
        config.data.lowercase = options["lowercase"]
        pretrained.tokenizer.save(path / workdir.TOKENIZER)
    model_config = BertConfig.from_dict(config.model, scan_layers=config.scan_layers)
    params = unflatten(pretrained.weights, model_config)
    state = TrainState(jnp.zeros([], jnp.int32), params, opt_state=())
    pretrained.weights = {}
    with closing(Checkpointer(path / workdir.CHECKPOINTS)) as checkpoints:
        checkpoints.save(0, state, {})
        # orbax writes a copy of its own.
        del params, state
    write_training(pretrained, path)
    files.write_json(path / workdir.CONFIG, config_lib.to_dict(config))


def _split(
    path: Path | epath.Path,
) -> tuple[Path | epath.Path, Path | epath.Path, int | None]:
    """The work directory, the folder of its checkpoints, and the step where one is named."""
    if path.parent.name in _CHECKPOINTS and path.name.isdecimal():
        return path.parent.parent, path.parent, int(path.name)
    folders = [path / name for name in _CHECKPOINTS]
    # Until it is scored for the first time, a run has no best one.
    used = (f for f in folders if f.is_dir() and any(p.name.isdecimal() for p in f.iterdir()))
    return path, next(used, folders[-1]), None


def _training(directory: Path | epath.Path, step: int) -> dict[str, Any]:
    """What is known of a checkpoint's training, from the files beside it."""
    if not (directory / workdir.CORPUS).exists():
        # Converted weights bring their own story along, if there is one.
        return read_training(directory)
    corpus = files.read_json(directory / workdir.CORPUS)
    # Their number says enough: names of files are nobody else's business.
    corpus["sources"] = len(corpus.pop("sources", []))
    config = workdir.load_config(directory)
    if workdir.is_finetuning(config):
        results = _finetuning_results(directory, step)
        return {
            "step": step,
            "config": config_lib.to_dict(config),
            "corpus": corpus,
            "results": results,
        }
    results = {}
    for line in read_metrics(directory):
        if line["step"] == step and f"{_EVALUATION}mlm_loss" in line:
            results = {k.removeprefix(_EVALUATION): v for k, v in line.items() if k != "step"}
    if results:
        # The score depends on it: held-out documents are cut as the stage's sequences are.
        stages = resolve_stages(config.train)
        stage = next((stage for stage in stages if step <= stage.end_step), stages[-1])
        results["max_seq_length"] = stage.max_seq_length
    return {
        "step": step,
        "config": config_lib.to_dict(config),
        "corpus": corpus,
        "results": results,
    }


def _finetuning_results(directory: Path | epath.Path, step: int) -> dict[str, Any]:
    """The scores of a checkpoint on the validation split, where it was scored."""
    for line in read_metrics(directory):
        scores = {k: v for k, v in line.items() if k.startswith(_EVALUATION)}
        if line["step"] == step and scores:
            return {name.removeprefix(_EVALUATION): value for name, value in scores.items()}
    return {}
