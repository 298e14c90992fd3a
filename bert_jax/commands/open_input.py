"""Opens the input of a run, and prepares it first if it is missing."""

from etils import epath
from ml_collections import ConfigDict

from bert_jax.parallel import multihost
from bert_jax.pretraining.input import RunInput, open_input, open_store, with_other_text
from bert_jax.store.manifest import say_skipped
from bert_jax.training import workdir
from bert_jax.training.start import claim_corpus


def open_run_input(config: ConfigDict, directory: epath.PathLike) -> RunInput:
    """Opens the token store of a run, and prepares it first if it is missing.

    A store that `config.data.store` names must exist, and the config must have its values (see
    `complete_config`). A store inside the work directory is prepared if it is missing, and must
    match the config in every key. Process 0 does all the writing while the others wait.
    """
    path = workdir.store_directory(directory, config)
    opened: list[RunInput] = []
    multihost.run_on_process_zero(lambda: opened.append(_prepare(config, directory, path)))
    with multihost.agreed():
        # Process 0 has opened its input already. Opening a remote store again would copy it again.
        return opened[0] if opened else open_input(config, directory, path)


def _prepare(config: ConfigDict, directory: epath.PathLike, path: epath.Path) -> RunInput:
    """Prepares the input if it is missing, claims it for the work directory, and opens it."""
    if not config.data.store:
        from bert_jax.commands.prepare_text import prepare_text

        prepare_text(config, directory, path)
    run_input = open_store(config, path)
    metadata = run_input.metadata
    say_skipped(metadata["dropped_documents"], metadata["first_dropped"])
    claim_corpus(directory, metadata, run_input.tokenizer, run_input.train.token_counts)
    if config.eval.other_text:
        from bert_jax.commands.prepare_text import prepare_other_text

        prepare_other_text(config, epath.Path(directory), run_input)
    return with_other_text(config, directory, run_input)
