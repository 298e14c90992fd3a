"""The checks of a run of pre-training before any work is done."""

import flax.linen as nn
import jax
from etils import epath
from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.config import check_batch
from bert_jax.interop.pretrained import Pretrained
from bert_jax.parallel import multihost
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.pretraining.build import check_family
from bert_jax.pretraining.first_state import copied_vocabulary, kept_layers
from bert_jax.store.manifest import given_tokenizer
from bert_jax.tokenizers import Tokenizer
from bert_jax.tokenizers.extension import replaced_pieces
from bert_jax.training import start, workdir
from bert_jax.training.stages import resolve_stages
from bert_jax.training.tracker import check_installed
from bert_jax.training.trainer import Trainer, check_memory


def check(
    config: ConfigDict,
    directory: epath.PathLike,
    trainer: Trainer,
    pretrained: Pretrained | None,
    teacher: Pretrained | None,
) -> list[str]:
    """Checks that pre-training can start, before any work is done. Writes nothing.

    Returns:
      Warnings, one sentence each.
    """
    check_installed(config)
    check_family(config)
    check_batch(config, num_data_shards(trainer.mesh), jax.process_count())
    warnings = start.check(directory, config)
    if teacher:
        _check_teacher(config, teacher, trainer.model)
    elif trainer.objective.teacher:
        raise UserError(
            "config.objective.terms needs a teacher: set --config.objective.teacher=DIR to a "
            "trained model, such as the work directory of python -m bert_jax.main "
            "--config=configs/tiny.py --workdir=DIR"
        )
    if pretrained or teacher:
        _check_vocabulary(config, directory, pretrained, pretrained or teacher)
    if not workdir.has_checkpoints(directory):
        if config.resume_from:
            _check_other_run(config)
        # A run with checkpoints has fitted into memory before, or only prints its results.
        check_memory(trainer, config.train.gradient_accumulation_steps)
    return warnings


def _check_vocabulary(
    config: ConfigDict, directory: epath.PathLike, pretrained: Pretrained | None, given: Pretrained
) -> None:
    if config.data.store:
        store = workdir.store_directory(directory, config)
        tokenizer = tokenizers.load(store / "tokenizer")
        # The tokenizer of a store has the added tokens.
        extends = pretrained and config.data.add_tokens and pretrained.tokenizer
        if not (extends and replaced_pieces(pretrained.tokenizer, tokenizer) is not None):
            _check_tokenizer(given, tokenizer, f"the token store {store}")
    elif pretrained and not config.data.vocab:
        # In a vocabulary trained on the run's own text, every id would mean another token.
        raise UserError(
            f"config.init_from: {config.init_from} has no vocabulary; set --config.data.vocab to "
            "the one that its weights were trained with"
        )
    elif config.data.vocab not in ("", copied_vocabulary(directory)) and multihost.is_first():
        name = f"config.data.vocab={config.data.vocab}"
        _check_tokenizer(given, given_tokenizer(config.data), name)


def _check_other_run(config: ConfigDict) -> None:
    start.check_same_run(config.resume_from, config)
    step = workdir.newest_checkpoint(config.resume_from)
    if step >= config.train.num_steps:
        raise UserError(
            f"config.resume_from: {config.resume_from} is already at step {step:,}, and this "
            f"run ends at step {config.train.num_steps:,} (config.train.num_steps): nothing is "
            "left to do; set a larger config.train.num_steps to train it further, or "
            "config.init_from for a new run with its weights"
        )


def _check_teacher(config: ConfigDict, teacher: Pretrained, model: nn.Module) -> None:
    theirs = teacher.model
    length = max(stage.max_seq_length for stage in resolve_stages(config))
    problem = teacher.missing_head("masked_lm")
    if theirs["vocab_size"] != config.model.vocab_size:
        problem = (
            f"its vocabulary has {theirs['vocab_size']} tokens, but config.model.vocab_size is "
            f"{config.model.vocab_size}"
        )
    elif theirs["max_position_embeddings"] < length:
        problem = (
            f"it has {theirs['max_position_embeddings']} positions, but config.train.stages has "
            f"sequences of {length} tokens"
        )
    elif theirs["hidden_size"] != config.model.hidden_size and any(
        term.needs_teacher_width for term in model.terms
    ):
        problem = (
            f"its width is {theirs['hidden_size']}, but config.model.hidden_size is "
            f"{config.model.hidden_size}; leave hidden_cosine out of config.objective.terms"
        )
    if problem:
        raise UserError(f"config.objective.teacher is {config.objective.teacher}: {problem}")
    kept_layers(config, teacher, model)


def _check_tokenizer(pretrained: Pretrained, tokenizer: Tokenizer, name: str) -> None:
    """Refuses a vocabulary other than the one that the weights were trained with."""
    theirs, rows = pretrained.tokenizer, pretrained.model["vocab_size"]
    if theirs is not None and theirs.fingerprint == tokenizer.fingerprint:
        return
    if rows != tokenizer.vocab_size:
        difference = f"it has {tokenizer.vocab_size} tokens, not {rows}"
    elif theirs is None:
        return
    elif theirs.options != tokenizer.options:
        difference = f"its options are {tokenizer.options}, not {theirs.options}"
    else:
        difference = "the tokens differ"
    raise UserError(
        f"{name} has a different vocabulary from the weights of {pretrained.source}: {difference}"
    )
