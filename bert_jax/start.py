"""How a run starts: on its own checkpoint, on another run's, on given weights, or from nothing."""

from contextlib import closing
from pathlib import Path
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax import files, workdir
from bert_jax.data.store_manifest import given_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop import formats
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import unflatten
from bert_jax.progress import say
from bert_jax.tokenizers import Tokenizer
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.state import TrainState
from bert_jax.training.trainer import Trainer

# Keys in which a run may differ from the one whose state it takes over: they steer the
# steps to come, and say nothing of those that were taken.
_STEERING = (
    "schedule.",
    "optimizer.b",
    "optimizer.eps",
    "optimizer.weight_decay",
    "optimizer.max_grad_norm",
    "init_from",
    "resume_from",
)
# Keys of the model that say nothing of its function, only of its training.
_TRAINING_ONLY = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")

# What a config says of a tokenizer; and the files that a vocabulary may be in.
_TOKENIZER_KEYS = ("lowercase", "max_input_chars_per_word")
_VOCABS = ("vocab.txt", "sentencepiece.model")


def start(
    config: ConfigDict,
    directory: epath.PathLike,
    trainer: Trainer,
    checkpointer: Checkpointer,
    tokenizer: Tokenizer,
) -> tuple[TrainState, dict[str, Any]]:
    """The state to begin with, and the place in the data that belongs to it.

    Args:
      config: The run's.
      directory: Its work directory, whose corpus is claimed already.
      trainer: Its trainer.
      checkpointer: Its checkpoints.
      tokenizer: Its tokenizer.

    Raises:
      UserError: what `config.init_from` or `config.resume_from` names does not fit.
    """
    # 1. The run goes on where it was: its own newest checkpoint, whatever the config says.
    if own := checkpointer.restore_newest(trainer.abstract_state()):
        return own
    # 2. It takes over another run: weights, optimizer, step and place in the data.
    if config.resume_from:
        return resume_other(config, directory, trainer)
    # 3. It begins at step 0 with weights from elsewhere.
    if config.init_from:
        return initial_state(config, trainer, tokenizer), {}
    # 4. It begins from scratch.
    return trainer.init_state(), {}


def resume_other(
    config: ConfigDict, directory: epath.PathLike, trainer: Trainer
) -> tuple[TrainState, dict[str, Any]]:
    """The newest state of another run, to be continued here."""
    other = epath.Path(config.resume_from)
    workdir.check_same_corpus(other, directory)
    with closing(Checkpointer(other / workdir.CHECKPOINTS, read_only=True)) as checkpoints:
        return checkpoints.restore_newest(trainer.abstract_state())


def initial_state(config: ConfigDict, trainer: Trainer, tokenizer: Tokenizer) -> TrainState:
    """Step 0 with the weights that `config.init_from` names; moments are zero."""
    pretrained = read_weights(config)
    check_model(config, pretrained.model)
    check_tokenizer(config, pretrained, tokenizer)
    for warning in pretrained.warnings:
        say(f"warning: {warning}")
    return trainer.state_of(unflatten(pretrained.weights, trainer.model_config))


def check(config: ConfigDict, directory: epath.PathLike) -> None:
    """Refuses, before any work, a start that could not be made.

    Raises:
      UserError: what `config.init_from` or `config.resume_from` names does not fit.
    """
    if workdir.has_checkpoints(directory):
        return
    if config.resume_from:
        workdir.check_same_run(config.resume_from, config, _STEERING)
        step = workdir.newest_checkpoint(config.resume_from)
        if step >= config.train.num_steps:
            raise UserError(
                f"config.resume_from: {config.resume_from} is at step {step:,} already, and "
                f"config.train.num_steps is {config.train.num_steps:,}: nothing is left to do "
                "(a new run with its weights: config.init_from)"
            )
    if config.init_from:
        check_weights(config)


def check_weights(config: ConfigDict) -> None:
    """Refuses weights that do not fit the config.

    Above all those whose vocabulary nobody has named: one trained on the run's own
    text would give every id another meaning.
    """
    pretrained = read_weights(config)
    check_model(config, pretrained.model)
    if config.data.vocab:
        tokenizer = given_tokenizer(config.data, config.model.vocab_size)
        check_tokenizer(config, pretrained, tokenizer)
    elif not config.data.store:
        raise UserError(
            "config.init_from brings weights, and their vocabulary must come with them: set "
            + _vocabulary_flags(
                files.open_path(config.init_from, "config.init_from"), pretrained.tokenizer
            )
        )


def _vocabulary_flags(source: Path | epath.Path, tokenizer: Tokenizer | None) -> str:
    """The flags that name the vocabulary of these weights."""
    options = tokenizer.options if tokenizer else {}
    flags = [f"--config.data.{key}={options[key]}" for key in _TOKENIZER_KEYS if key in options]
    if options.get("kind") == "sentencepiece":
        flags.insert(0, "--config.data.tokenizer=sentencepiece")
    # Beside the weights, beside a checkpoint's prefix, or in WORKDIR of a single step.
    folders = (source, source / "tokenizer", source.parent, source.parent.parent / "tokenizer")
    places = [folder / name for folder in folders for name in _VOCABS]
    path = next((str(path) for path in places if path.exists()), None)
    if path is None:
        return (
            "--config.data.vocab to a vocab.txt (python -m bert_jax.convert --to=bert_jax writes "
            f"one to DIR/tokenizer) {' '.join(flags)}"
        )
    return " ".join([f"--config.data.vocab={path}", *flags])


def read_weights(config: ConfigDict) -> Pretrained:
    """Reads what `config.init_from` names; a head that it lacks is drawn from the seed."""
    pretrained = formats.read(config.init_from)
    pretrained.complete(config.seed)
    return pretrained


def check_model(config: ConfigDict, model: dict[str, Any]) -> None:
    """Refuses a config of another model than the weights are of; names every difference."""
    wrong = {
        key: value
        for key, value in model.items()
        if key not in _TRAINING_ONLY and config.model[key] != value
    }
    if wrong:
        flags = " ".join(f"--config.model.{key}={value}" for key, value in wrong.items())
        raise UserError(f"the weights of {config.init_from} are of another model: set {flags}")


def check_tokenizer(config: ConfigDict, pretrained: Pretrained, tokenizer: Tokenizer) -> None:
    """Refuses a vocabulary other than the one that the weights were trained with."""
    theirs = pretrained.tokenizer
    if theirs is None or theirs.fingerprint == tokenizer.fingerprint:
        return
    if theirs.options != tokenizer.options:
        difference = f"it has the options {theirs.options}, here they are {tokenizer.options}"
    else:
        difference = "the entries differ"
    raise UserError(
        f"the weights of {config.init_from} were trained with another vocabulary: {difference}"
    )
