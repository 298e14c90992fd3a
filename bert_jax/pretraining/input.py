"""The input of a run of pre-training: its token store, its batches, and other text to score."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath
from ml_collections import ConfigDict

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.batches.evaluation_batches import EVALUATION_SEED
from bert_jax.batches.stream import Stream, StreamSpec
from bert_jax.config import check_vocabulary
from bert_jax.store.token_store import TokenStore, read_metadata
from bert_jax.text.named_sources import check_weights
from bert_jax.tokenizers import Tokenizer
from bert_jax.training import workdir
from bert_jax.training.stages import Stage

# On a network file system, another machine's new files may appear some seconds late.
_VISIBLE_WITHIN_SECONDS = 10


@dataclasses.dataclass(frozen=True)
class RunInput:
    """The input of a run.

    Attributes:
      heldout: The held-out split; None if no document was held out.
      other: The text of `config.eval.other_text`, and the mean length of its tokens; None if there
        is none.
    """

    train: TokenStore
    heldout: TokenStore | None
    tokenizer: Tokenizer
    metadata: dict[str, Any]
    other: tuple[TokenStore, float] | None = None

    def stream(
        self, spec: StreamSpec, *, shards: Sequence[int] = (0,), num_shards: int = 1
    ) -> Stream:
        return Stream(self.train, self.tokenizer, spec, shards=shards, num_shards=num_shards)

    def describe(self) -> str:
        heldout = self.heldout.num_documents if self.heldout else 0
        report = self.metadata.get("report", {})
        ends = "the ends of " if report.get("heldout") == "ends" else ""
        return (
            f"{self.train.num_tokens:,} tokens of {self.train.num_documents:,} documents to train "
            f"on, {ends}{heldout:,} documents held out"
        )


def heldout_characters_per_token(metadata: Mapping[str, Any]) -> float:
    """Returns the mean length of the tokens of the held-out text; 0 if an old store lacks it."""
    report = metadata.get("report", {})
    return report.get("heldout_characters", 0) / max(1, report.get("heldout_tokens", 0))


def stream_spec(config: ConfigDict, stage: Stage) -> StreamSpec:
    """Makes the specification of a stage's batches from the config."""
    return StreamSpec.of(
        config.data,
        max_seq_length=stage.max_seq_length,
        max_predictions_per_seq=stage.max_predictions_per_seq,
        batch_size=stage.batch_size,
        masked_lm_prob=stage.masked_lm_prob,
        seed=config.seed,
        stage=stage.index,
    )


def evaluation_spec(
    config: ConfigDict, stage: Stage, num_data_shards: int, max_sequences: int
) -> StreamSpec:
    """Makes the specification of the held-out batches at the sequence length of a stage.

    A batch has at most `max_sequences` rows, unless that is 0. Its size is rounded up to a multiple
    of the data shards.
    """
    batch_size = min(config.eval.batch_size, max_sequences or config.eval.batch_size)
    return dataclasses.replace(
        stream_spec(config, stage),
        batch_size=-(-batch_size // num_data_shards) * num_data_shards,
        seed=EVALUATION_SEED,
        stage=0,
    )


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
