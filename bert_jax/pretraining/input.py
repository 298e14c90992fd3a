"""Opens the input of a run: its token store, and other text to evaluate on."""

import dataclasses
import time

from etils import epath
from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config import check_vocabulary
from bert_jax.pretraining.batches import RunInput
from bert_jax.store.token_store import TokenStore, read_metadata
from bert_jax.text.named_sources import check_weights
from bert_jax.training import workdir

# On a network file system, another machine's new files may appear some seconds late.
_VISIBLE_WITHIN_SECONDS = 10


def open_input(config: ConfigDict, directory: epath.PathLike, path: epath.Path) -> RunInput:
    """Opens the input that process 0 has prepared or found, with the token store at `path`."""
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
    return with_other_text(config, directory, open_store(config, path))


def open_store(config: ConfigDict, path: epath.Path) -> RunInput:
    """Opens a finished token store and checks that it fits the config."""
    metadata, tokenizer = read_metadata(path), tokenizers.load(path / "tokenizer")
    heldout = TokenStore(path / "heldout") if (path / "heldout").exists() else None
    run_input = RunInput(TokenStore(path / "train"), heldout, tokenizer, metadata)
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


def with_other_text(config: ConfigDict, directory: epath.PathLike, run_input: RunInput) -> RunInput:
    if not config.eval.other_text:
        return run_input
    counts = files.read_json(epath.Path(directory) / workdir.OTHER_TEXT_RECORD)
    store = TokenStore(epath.Path(directory) / workdir.OTHER_TEXT)
    return dataclasses.replace(run_input, other=(store, counts["characters"] / counts["tokens"]))
