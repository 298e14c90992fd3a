"""What `python -m bert_jax.finetune` and `bert_jax.finetune` do for one run."""

import functools
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.commands.read_model import read_guide, read_model
from bert_jax.config.command_line import ConfigSource
from bert_jax.config.finetuning import validate
from bert_jax.config.task_sections import markers
from bert_jax.finetuning.run import FinetuningRun, TaskSetup, make_run
from bert_jax.finetuning.summary import show
from bert_jax.interop.pretrained import Pretrained
from bert_jax.reports.page import write_pages
from bert_jax.tasks import make_task
from bert_jax.tokenizers.extension import with_markers
from bert_jax.training import workdir
from bert_jax.training.engine import run_to_end


def finetune(
    config: ConfigDict,
    directory: epath.PathLike,
    setup: TaskSetup | None = None,
    source: ConfigSource | None = None,
) -> dict[str, Any] | None:
    """Runs or resumes fine-tuning, up to the end of the last epoch.

    Args:
      directory: The work directory. It gets config.json, tokenizer/, checkpoints/, best/,
        metrics.jsonl, tensorboard/, and at the end curves.png, results.json and report.html.
      setup: The result of `open_task_setup`, if several runs share it (a sweep).

    Returns:
      The contents of results.json, or None if the run was stopped before its end.
    """
    path = epath.Path(directory)

    def open_finetuning() -> FinetuningRun:
        validate(config)
        return make_run(config, path, setup or open_task_setup(config, path))

    is_workdir_alone = source is not None and source.is_workdir_alone
    return run_to_end(
        open_finetuning,
        path,
        opens_nothing=is_workdir_alone and not config.eval.predict,
        # A sweep has its own report and advice.
        show=functools.partial(show, with_advice=setup is None),
        write_pages=write_pages,
    )


def open_task_setup(config: ConfigDict, directory: epath.PathLike | None = None) -> TaskSetup:
    """Reads the weights and opens the data.

    Args:
      directory: The work directory of the run. If it has checkpoints, its config and tokenizer
        are used, and the initial weights need not exist.
    """
    if directory is not None and workdir.has_checkpoints(directory):
        saved = workdir.load_config(directory)
        model, family = saved.model.to_dict(), saved.family
        tokenizer = tokenizers.load(epath.Path(directory) / workdir.TOKENIZER)
        read_weights = functools.partial(_read_weights, config)
    else:
        pretrained = _read_weights(config)
        model, family = pretrained.model, pretrained.family
        tokenizer = pretrained.needed_tokenizer()

        def read_weights() -> Pretrained:
            return pretrained

    positions = model["max_position_embeddings"]
    if config.data.max_seq_length > positions:
        raise UserError(
            f"config.data.max_seq_length is {config.data.max_seq_length}, longer than the "
            f"{positions} positions of {config.init_from}"
        )
    task = make_task(config, config.data.input, tokenizer)
    return TaskSetup(model, family, tokenizer, task, read_weights, read_guide(config))


def _read_weights(config: ConfigDict) -> Pretrained:
    """Reads the initial weights, with a row of the vocabulary for each new marker."""
    pretrained = read_model(config.init_from)
    if "embedding" in config and (found := markers(config.embedding)):
        tokenizer = pretrained.needed_tokenizer()
        extended = with_markers(tokenizer, found)
        if new := extended.tokens[tokenizer.vocab_size :]:
            say(f"added to the vocabulary: {', '.join(map(repr, new))}")
        pretrained.extend(extended)
    return pretrained
