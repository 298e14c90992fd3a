"""Evaluates models in work directories, on held-out or other text."""

import contextlib
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import Progress, say
from bert_jax.commands.prepare_text import options_of_text
from bert_jax.commands.read_model import read_teacher
from bert_jax.config import check_vocabulary
from bert_jax.interop import formats
from bert_jax.interop.native import is_native
from bert_jax.parallel import multihost
from bert_jax.pretraining.build import make_trainer
from bert_jax.pretraining.evaluation import counts_by_source, evaluate
from bert_jax.pretraining.input import heldout_characters_per_token
from bert_jax.store.preparation import tokenize_corpus
from bert_jax.store.token_store import TokenStore, read_metadata
from bert_jax.tokenizers import Tokenizer
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.trainer import fit_to_devices


def evaluate_workdir(
    directory: epath.PathLike,
    data: str = "",
    max_sequences: int | None = None,
    step: int | None = None,
    **data_options: Any,
) -> dict[str, Any]:
    """Evaluates a checkpoint of a work directory.

    Args:
      data: Globs of other texts; if empty, the run's held-out documents are used.
      data_options: Values of `config.data` that replace the run's; None keeps a value. The format
        of other texts is guessed unless it is given.

    Returns:
      The results of `evaluate`, and `step`.
    """
    config = workdir.load_config(directory)
    if workdir.is_finetuning(config):
        raise UserError(
            f"{directory} holds a fine-tuned model, which predicts no masked words; its scores "
            f"are in {epath.Path(directory) / workdir.RESULTS}, and --data=FILE scores a labeled "
            "file"
        )
    if max_sequences is not None:
        config.eval.max_sequences = max_sequences
    if data:
        config.data.format = "auto"
    config.data.update({key: value for key, value in data_options.items() if value is not None})
    tokenizer, token_counts_V = workdir.load_vocabulary(directory)
    check_vocabulary(config, tokenizer.vocab_size, tokenizer.mask_id, str(directory))
    fit_to_devices(config)
    trainer = make_trainer(config, teacher=read_teacher(config))
    folder = workdir.checkpoint_folder(directory, step)
    with contextlib.closing(Checkpointer(folder, read_only=True)) as checkpointer:
        step, params = checkpointer.restore_params(trainer.abstract_state().params, step)
    with _store_to_evaluate(directory, config, tokenizer, data) as (store, characters_per_token):
        if data or token_counts_V is None:
            # The training text of converted weights is unknown. Their baseline uses the frequencies
            # in the scored text, which favors the baseline.
            token_counts = {"": store.token_counts if token_counts_V is None else token_counts_V}
        else:
            train = TokenStore(workdir.store_directory(directory, config) / "train")
            token_counts = counts_by_source(train)
        with Progress("evaluate", config.eval.max_sequences or None, "sequences") as progress:
            results = evaluate(
                trainer,
                params,
                step,
                store=store,
                tokenizer=tokenizer,
                token_counts=token_counts,
                config=config,
                characters_per_token=characters_per_token,
                advance=progress.advance,
            )
    return {"step": step, **results}


@contextlib.contextmanager
def as_workdir(model: epath.PathLike, step: int | None = None) -> Iterator[epath.Path]:
    """Yields the work directory of a model, or a temporary one for a model of another format."""
    path = epath.Path(files.checked_path(model, "--workdir"))
    if (path / workdir.CORPUS).exists() or is_native(path):
        yield path
        return
    if jax.process_count() > 1:
        raise UserError(f"{path} is not a work directory; convert it with bert_jax.convert first")
    with tempfile.TemporaryDirectory(prefix="bert_jax_evaluate_") as scratch:
        pretrained = formats.read(path, step=step)
        pretrained.needed_tokenizer()
        if pretrained.head:
            raise UserError(f"{path} is fine-tuned, so it cannot be evaluated on text")
        pretrained.complete()
        for warning in pretrained.warnings:
            say(f"warning: {warning}")
        formats.write(pretrained, scratch, "bert_jax")
        yield epath.Path(scratch)


@contextlib.contextmanager
def _store_to_evaluate(
    directory: epath.PathLike, config: ConfigDict, tokenizer: Tokenizer, data: str
) -> Iterator[tuple[TokenStore, float]]:
    """Yields the text to score and the mean length of its tokens."""
    if not data:
        path = workdir.store_directory(directory, config)
        split = path / "heldout"
        if not split.exists():
            raise UserError(
                "there is no held-out text: the run held out no documents, its token store is "
                "gone, or the model comes from elsewhere; give --data=GLOB"
            )
        yield TokenStore(split), heldout_characters_per_token(read_metadata(path))
        return
    with contextlib.ExitStack() as stack:

        def tokenized() -> tuple[str, float]:
            if jax.process_count() == 1:
                # The work directory may be one that can only be read.
                temporary = tempfile.TemporaryDirectory(prefix="bert_jax_evaluate_")
                scratch = epath.Path(stack.enter_context(temporary))
            else:
                # Every host can read the work directory.
                scratch = epath.Path(directory) / f"evaluate_{uuid.uuid4().hex}"
                stack.callback(files.remove_directory, scratch)
            split = scratch / "split"
            options = options_of_text(config.data, (data,), config.data.format)
            counts = tokenize_corpus(options, tokenizer, split)
            return str(split), counts["characters"] / counts["tokens"]

        split, characters_per_token = multihost.run_on_process_zero(tokenized)
        yield TokenStore(split), characters_per_token
