"""The batches that a run of pre-training makes from its token store."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.batches.evaluation_batches import EVALUATION_SEED
from bert_jax.batches.stream import Stream, StreamSpec
from bert_jax.store.token_store import TokenStore
from bert_jax.tokenizers import Tokenizer
from bert_jax.training.stages import Stage


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
