"""Prepares and opens the input of a run: its token store, and other text to evaluate on."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config import check_vocabulary
from bert_jax.parallel import multihost
from bert_jax.pretraining.batches import RunInput
from bert_jax.store.manifest import check_metadata, input_key, open_corpus, source_states
from bert_jax.store.preparation import prepare, tokenize_corpus
from bert_jax.store.token_store import TokenStore, read_metadata
from bert_jax.text.bad_records import say_skipped
from bert_jax.text.named_sources import check_weights, join_inputs
from bert_jax.tokenizers import Tokenizer
from bert_jax.training import workdir
from bert_jax.training.start import claim_corpus

# On a network file system, another machine's new files may appear some seconds late.
_VISIBLE_WITHIN_SECONDS = 10


def open_run_input(config: ConfigDict, directory: epath.PathLike) -> RunInput:
    """Opens the token store of a run, and prepares it first if it is missing.

    A store that `config.data.store` names must exist, and the config must have its values (see
    `settings.complete`). A store inside the work directory is prepared if it is missing, and must
    match the config in every key. Process 0 does all the writing while the others wait.
    """
    path = workdir.store_directory(directory, config)
    opened: list[RunInput] = []
    multihost.run_on_process_zero(lambda: opened.append(_prepare(config, directory, path)))
    with multihost.agreed():
        # Process 0 has opened its input already. Opening a remote store again would copy it again.
        return opened[0] if opened else _open(config, directory, path)


def _prepare(config: ConfigDict, directory: epath.PathLike, path: epath.Path) -> RunInput:
    """Prepares the input if it is missing, claims it for the work directory, and opens it."""
    if config.data.store:
        metadata = read_metadata(path)
    else:
        began = (epath.Path(directory) / workdir.CORPUS).exists()
        if began and not (path / "metadata.json").exists():
            # The store was removed. Other text is refused before it is prepared.
            began_with = workdir.read_corpus(directory)
            check_metadata(began_with, path, config.data, config.model.vocab_size)
        # Returns at once if the store exists and matches the config.
        metadata = prepare(config.data, config.model.vocab_size, path)
    say_skipped(metadata["dropped_documents"], metadata["first_dropped"])
    run_input = _open_store(config, path)
    claim_corpus(directory, metadata, run_input.tokenizer, run_input.train.token_counts)
    if config.eval.other_text:
        _prepare_other_text(config, epath.Path(directory), run_input.tokenizer, metadata)
    return _with_other_text(config, directory, run_input)


def _prepare_other_text(
    config: ConfigDict, directory: epath.Path, tokenizer: Tokenizer, metadata: dict[str, Any]
) -> None:
    """Tokenizes `config.eval.other_text` into the work directory, unless that is done."""
    record = directory / workdir.OTHER_TEXT_RECORD
    made_of = {"input": list(config.eval.other_text), "tokenizer": tokenizer.fingerprint}
    if record.exists() and made_of.items() <= files.read_json(record).items():
        return
    try:
        data = options_of_text(config.data, config.eval.other_text, "auto")
        other, own = map(source_states, (open_corpus(data).sources, metadata["sources"]))
        if shared := sorted(other.keys() & own.keys()):
            key = input_key(metadata)
            raise UserError(
                f"it is {join_inputs(config.eval.other_text)} and config.data.{key} is "
                f"{join_inputs(config.data[key])}, which both have {shared[0]}: the model would be "
                "scored on text that it was trained on; choose other files"
            )
        counts = tokenize_corpus(data, tokenizer, directory / workdir.OTHER_TEXT)
    except UserError as error:
        raise UserError(f"config.eval.other_text: {error}") from error
    # Written last: its presence means that the text is complete.
    files.write_json(record, made_of | counts)


def _with_other_text(
    config: ConfigDict, directory: epath.PathLike, run_input: RunInput
) -> RunInput:
    if not config.eval.other_text:
        return run_input
    counts = files.read_json(epath.Path(directory) / workdir.OTHER_TEXT_RECORD)
    store = TokenStore(epath.Path(directory) / workdir.OTHER_TEXT)
    return dataclasses.replace(run_input, other=(store, counts["characters"] / counts["tokens"]))


def options_of_text(data: ConfigDict, texts: Sequence[str], format: str) -> ConfigDict:
    """Returns the section `data` for other texts than those of the run."""
    options = data.copy_and_resolve_references()
    options.unlock()
    options.input, options.sources, options.format = tuple(texts), (), format
    if options.table_rows == "documents":
        # The ids of documents only decide which are held out.
        options.document_field = ""
    return options


def _open(config: ConfigDict, directory: epath.PathLike, path: epath.Path) -> RunInput:
    deadline = time.monotonic() + _VISIBLE_WITHIN_SECONDS
    names = [workdir.CORPUS, *([workdir.OTHER_TEXT_RECORD] if config.eval.other_text else [])]
    for needed in (path, *(epath.Path(directory) / name for name in names)):
        while not needed.exists():
            if time.monotonic() > deadline:
                raise UserError(
                    f"{needed}, which process 0 has written or found, does not exist for this "
                    "process: --workdir and config.data.store must be on shared storage"
                )
            time.sleep(0.2)
    return _with_other_text(config, directory, _open_store(config, path))


def _open_store(config: ConfigDict, path: epath.Path) -> RunInput:
    heldout = TokenStore(path / "heldout") if (path / "heldout").exists() else None
    tokenizer = tokenizers.load(path / "tokenizer")
    run_input = RunInput(TokenStore(path / "train"), heldout, tokenizer, read_metadata(path))
    check_vocabulary(config, tokenizer.vocab_size, tokenizer.mask_id, str(path))
    sources = run_input.train.sources
    check_weights(sources, config.data.source_weights)
    if config.data.sampling_exponent != 1 and not any(sources):
        say(
            f"config.data.sampling_exponent={config.data.sampling_exponent:g} has no effect: the "
            "texts have no names (config.data.sources)"
        )
    if config.eval.other_text and not run_input.heldout:
        raise UserError(
            "config.eval.other_text needs held-out documents, but there are none: the corpus is "
            "too small, or config.data.heldout_fraction is 0"
        )
    return run_input
