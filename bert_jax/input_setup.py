"""What a run reads: its token store, or rows of TFRecord files, and the batches of each stage."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import jax
from etils import epath
from ml_collections import ConfigDict

from bert_jax import prepare, tokenizers, workdir
from bert_jax.config import check_vocabulary
from bert_jax.data import static_rows
from bert_jax.data.pipeline import PipelineSpec, PretrainingStream
from bert_jax.data.static_rows import StaticRows
from bert_jax.data.static_stream import StaticStream
from bert_jax.data.store import TokenStore, read_metadata
from bert_jax.errors import UserError
from bert_jax.parallel import multihost
from bert_jax.training.recorder import Recorder
from bert_jax.training.stages import Stage, resolve_stages
from bert_jax.training.trainer import Trainer

# A network file system may show another machine's new files some seconds late.
_SEEN_WITHIN_SECONDS = 10


@dataclasses.dataclass(frozen=True)
class Corpus:
    """What a run reads; `heldout` is None where no document was held out."""

    train: TokenStore | StaticRows
    heldout: TokenStore | None
    tokenizer: tokenizers.Tokenizer

    @property
    def is_static(self) -> bool:
        """Whether pairs and masks are those of TFRecord files."""
        return isinstance(self.train, StaticRows)

    def stream(
        self, spec: PipelineSpec, *, shards: Sequence[int] = (0,), num_shards: int = 1
    ) -> PretrainingStream | StaticStream:
        """A stage's batches; of them the parts `shards` of `num_shards`, this host's."""
        host = {"shards": shards, "num_shards": num_shards}
        if self.is_static:
            return StaticStream(self.train, spec, **host)
        return PretrainingStream(self.train, self.tokenizer, spec, **host)

    def describe(self) -> str:
        """How much there is to train on, in words."""
        if self.is_static:
            return (
                f"{self.train.num_rows:,} records of TFRecord files to train on, pairs and masks "
                "as they were written; nothing is held out, as records do not say which document "
                "they are of: evaluate with python -m bert_jax.evaluate --workdir=DIR --data=TEXTS"
            )
        heldout = self.heldout.num_documents if self.heldout else 0
        return (
            f"{self.train.num_tokens:,} tokens of {self.train.num_documents:,} documents to train "
            f"on, {heldout:,} documents held out"
        )


def open_corpus(config: ConfigDict, directory: epath.PathLike) -> Corpus:
    """Opens the run's token store, or its rows; prepares them first where they are missing.

    A store that `config.data.store` names must be there: it is taken as it is, knows its
    own source, and only says what the config must agree with. The one inside the work
    directory is prepared, and must be of this very config. Of several processes the first
    does all that is written; the others wait for it, and then open the same files.
    """
    path = workdir.store_directory(directory, config)
    first: list[Corpus] = []
    multihost.run_on_process_zero(lambda: first.append(_prepared(config, directory, path)))
    return multihost.run_on_all(lambda: first[0] if first else _shared(config, directory, path))


def _prepared(config: ConfigDict, directory: epath.PathLike, path: epath.Path) -> Corpus:
    """The corpus, after all that must be written has been."""
    is_static = config.data.format == static_rows.FORMAT
    if config.data.store:
        metadata = (static_rows.read_metadata if is_static else read_metadata)(path)
        check_options(config, metadata, path)
    else:
        # Returns at once where the store is there and of this config.
        metadata = prepare.prepare(config.data, config.model.vocab_size, path)
    corpus = _opened(config, path)
    workdir.claim_corpus(directory, metadata, corpus.tokenizer, corpus.train.token_counts)
    return corpus


def _shared(config: ConfigDict, directory: epath.PathLike, path: epath.Path) -> Corpus:
    """The corpus that the first process has prepared."""
    deadline = time.monotonic() + _SEEN_WITHIN_SECONDS
    for there in (path, epath.Path(directory) / workdir.CORPUS):
        while not there.exists():
            if time.monotonic() > deadline:
                raise UserError(
                    f"{there}, which process 0 has written or found, is not there for this "
                    "process: --workdir and config.data.store must lie on storage that all share"
                )
            time.sleep(0.2)
    return _opened(config, path)


def _opened(config: ConfigDict, path: epath.Path) -> Corpus:
    """What is there, if it fits the config."""
    is_static = config.data.format == static_rows.FORMAT
    tokenizer = tokenizers.load(path / "tokenizer")
    check_vocabulary(config, tokenizer.vocab_size, str(path))
    train = StaticRows(path) if is_static else TokenStore(path / "train")
    if is_static:
        for stage in resolve_stages(config.train):
            train.select(stage.max_seq_length, stage.max_predictions_per_seq)
    heldout = path / "heldout"
    has_heldout = not is_static and heldout.exists()
    return Corpus(train, TokenStore(heldout) if has_heldout else None, tokenizer)


def check_options(config: ConfigDict, metadata: dict[str, Any], path: epath.Path) -> None:
    """Refuses a config that says of a given store what is not so."""
    for key in ("tokenizer", "lowercase"):
        there, here = metadata["options"][key], config.data[key]
        if there != here:
            raise UserError(
                f"config.data.{key} is {here!r} but the token store {path} was prepared with "
                f"{there!r}; set --config.data.{key}={there}"
            )


def training_batches(
    config: ConfigDict, trainer: Trainer, corpus: Corpus, step: int, resume: dict[str, Any]
) -> Iterator[tuple[Stage, PretrainingStream | StaticStream, dict[str, jax.Array]]]:
    """Every step's batch, on the devices, from `step` to the end of the last stage.

    Args:
      step: Steps already taken.
      resume: What `resume_point` gave when they had been taken; may be empty.
    """
    for stage in trainer.stages:
        if step >= stage.end_step:
            continue
        stream = corpus.stream(
            pipeline_spec(config, stage), **multihost.batch_shards(trainer.layout.batch)
        )
        position = resume.get("position") if resume.get("stage") == stage.index else None
        first = max(step - stage.first_step, 0)
        with closing(stream.batches(first, stage.num_steps - first, position)) as rows:
            for batch in trainer.put(rows):
                yield stage, stream, batch


def pipeline_spec(config: ConfigDict, stage: Stage) -> PipelineSpec:
    """What determines a stage's batches."""
    return PipelineSpec(
        max_seq_length=stage.max_seq_length,
        max_predictions_per_seq=stage.max_predictions_per_seq,
        batch_size=stage.batch_size,
        seed=config.seed,
        stage=stage.index,
        masked_lm_prob=config.data.masked_lm_prob,
        short_seq_prob=config.data.short_seq_prob,
        whole_word_masking=config.data.whole_word_masking,
        shuffle_sentences=config.data.shuffle_sentences,
        num_threads=config.data.num_threads,
        prefetch_batches=config.data.prefetch_batches,
    )


def resume_point(
    stage: Stage, stream: PretrainingStream | StaticStream, step: int, recorder: Recorder
) -> dict[str, Any]:
    """What a checkpoint holds beside the state: where in the data the next step begins."""
    return {
        "stage": stage.index,
        "stage_first_step": stage.first_step,
        "position": stream.position(step - stage.first_step),
        "meter": recorder.state(),
    }
