"""Prepares the text of a run, and other text to evaluate on."""

from collections.abc import Sequence

from etils import epath
from ml_collections import ConfigDict

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.pretraining.input import RunInput
from bert_jax.store.manifest import input_key
from bert_jax.store.preparation import prepare, tokenize_corpus
from bert_jax.store.texts import check_metadata, open_corpus, source_states
from bert_jax.text.named_sources import join_inputs
from bert_jax.training import workdir


def prepare_text(config: ConfigDict, directory: epath.PathLike, path: epath.Path) -> None:
    """Writes the token store of a work directory, at `path`, unless it is finished.

    A finished store must match the config.
    """
    began = (epath.Path(directory) / workdir.CORPUS).exists()
    if began and not (path / "metadata.json").exists():
        # The store was removed. Other text is refused before it is prepared.
        began_with = workdir.read_corpus(directory)
        check_metadata(began_with, path, config.data, config.model.vocab_size)
    prepare(config.data, config.model.vocab_size, path)


def prepare_other_text(config: ConfigDict, directory: epath.Path, run_input: RunInput) -> None:
    """Tokenizes `config.eval.other_text` into the work directory, unless that is done."""
    tokenizer, metadata = run_input.tokenizer, run_input.metadata
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


def options_of_text(data: ConfigDict, texts: Sequence[str], format: str) -> ConfigDict:
    """Returns the section `data` for other texts than those of the run."""
    options = data.copy_and_resolve_references()
    options.unlock()
    options.input, options.sources, options.format = tuple(texts), (), format
    if options.table_rows == "documents":
        # The ids of documents only decide which are held out.
        options.document_field = ""
    return options
