"""Scores a model and baselines on held-out text.

The rows and masks do not depend on `config.seed`, and are the same at every step. 15 % of the
tokens are masked (30 % of the words with corruption=denoising), whatever training masks.
"""

import contextlib
import functools
import math
import operator
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict
from rich.table import Table

from bert_jax.base import files
from bert_jax.base.batch import MASKED_LM_FIELDS
from bert_jax.base.errors import UserError
from bert_jax.base.progress import Progress, empty_table, say
from bert_jax.batches.stream import evaluation_batches
from bert_jax.config import check_vocabulary
from bert_jax.objectives.language_model import FILLED_TEXTS
from bert_jax.objectives.term import Metric
from bert_jax.parallel import multihost
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.pretraining.build import make_trainer
from bert_jax.pretraining.input import (
    evaluation_spec,
    heldout_characters_per_token,
    options_of_text,
)
from bert_jax.store.preparation import tokenize_corpus
from bert_jax.store.token_store import TokenStore, read_metadata
from bert_jax.tokenizers import Tokenizer
from bert_jax.training import workdir
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.loop import DivergedError
from bert_jax.training.metrics import BY_SOURCE, OTHER_TEXT
from bert_jax.training.stages import Stage, model_keys
from bert_jax.training.trainer import Trainer, fit_to_devices

# The number of rows that are shown with filled masks, and about how many tokens of each.
_NUM_FILLED_TEXTS = 4
_FILLED_TOKENS = 48


def evaluate(
    trainer: Trainer,
    params: Any,
    stage: Stage,
    *,
    store: TokenStore,
    tokenizer: Tokenizer,
    token_counts: Mapping[str, np.ndarray],
    config: ConfigDict,
    characters_per_token: float = 0.0,
    advance: Callable[[int], None] = lambda sequences: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Scores `params` on a split of a token store.

    Args:
      trainer: Supplies the compiled evaluation step.
      params: Parameters with the trainer's shardings.
      stage: Defines the length and the number of predictions of a sequence.
      store: The documents to score.
      tokenizer: The tokenizer that the store was written with.
      token_counts: int64 [V] token counts of the *training* text of each source, by name, for the
        baseline.
      config: The config of the run; `eval` and `data` are used.
      characters_per_token: The mean length of the tokens of `store`, for the loss per character; 0
        if it is unknown.
      advance: Called with the number of sequences just scored.
      stop: Called after every batch; True ends the evaluation without results.

    Returns:
      The metrics and baselines of all terms (see `Term.results`), `num_sequences` and, for a
      model that fills masks, some `filled_texts`; empty if stopped. If the split has several
      sources, each has an equal part of `config.eval.max_sequences`, at least one sequence, and
      `by_source` has the metrics of each.

    Raises:
      UserError: The text yields no sequence.
      DivergedError: A metric is not finite.
    """
    num_shards = num_data_shards(trainer.mesh)
    sources = store.by_source()
    if config.data.rows == "pairs":
        # A source with a single held-out document yields no pairs.
        sources = {n: split for n, split in sources.items() if split.num_documents > 1} or sources
    add = functools.partial(jax.tree.map, operator.add)
    is_mixed = len(sources) > 1
    max_sequences = config.eval.max_sequences
    if max_sequences:
        max_sequences = max(1, max_sequences // len(sources))
    spec = evaluation_spec(config, stage, num_shards, max_sequences)
    totals: dict[str, dict[str, Any]] = {}
    masks: list[dict[str, Any]] = []
    for source, split in sources.items():
        batches = evaluation_batches(
            split,
            tokenizer,
            spec,
            max_sequences,
            multiple=num_shards,
            keeps_size=is_mixed,
            **multihost.batch_shards(trainer.layout.batch),
        )
        log_probs_V = unigram_log_probs(token_counts[source])
        for batch in trainer.put(batches):
            sums, guesses = jax.device_get(trainer.eval_step(params, batch, log_probs_V))
            sums = jax.tree.map(float, sums)
            if guesses and source not in totals:
                masks += filled_texts(guesses, tokenizer)[: -(-_NUM_FILLED_TEXTS // len(sources))]
            totals[source] = add(totals[source], sums) if source in totals else sums
            advance(int(sums["num_sequences"]))
            if stop():
                return {}
    totals = {source: sums for source, sums in totals.items() if sums["num_sequences"]}
    if not totals:
        raise UserError(f"{store.directory} yields no sequence to evaluate")
    results = _results(trainer, functools.reduce(add, totals.values()), characters_per_token)
    if masks:
        results[FILLED_TEXTS] = masks[:_NUM_FILLED_TEXTS]
    if is_mixed:
        results[BY_SOURCE] = {source: _results(trainer, sums) for source, sums in totals.items()}
    return results


def _results(
    trainer: Trainer, totals: dict[str, Any], characters_per_token: float = 0.0
) -> dict[str, Any]:
    """Computes the metrics from the sums over all sequences, and refuses NaN and infinity."""
    results = trainer.objective.results(totals, characters_per_token)
    for name, value in results.items():
        if not math.isfinite(value):
            raise DivergedError(
                f"{name} on held-out text is {value}: the weights are damaged, or the learning "
                "rate or config.optimizer.weight_decay was too high"
            )
    return results


def filled_texts(guesses: Mapping[str, np.ndarray], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Returns the beginnings of a few rows, with the guess for every mask.

    Each has `texts`, the texts before, between and after its masks, and `masks` with the `original`
    token, the `guess` and its `probability`.

    Args:
      guesses: The result of `Term.guesses`.
      tokenizer: The tokenizer of the rows.
    """
    found: list[dict[str, Any]] = []
    for ids_L, positions_M, originals_M, weights_M, guesses_M, probabilities_M in zip(
        *(guesses[name] for name in ("input_ids", *MASKED_LM_FIELDS)),
        *(guesses["guessed_ids"], guesses["probabilities"]),
        strict=True,
    ):
        ids_L = ids_L[ids_L != tokenizer.pad_id]
        end, begins_word_L = _FILLED_TOKENS, tokenizer.begins_word(ids_L)
        while end < len(ids_L) and not begins_word_L[end]:
            end += 1
        # Some of the tokens to predict are not masked, but kept or replaced by others.
        slots = [
            m
            for m in np.argsort(positions_M)
            if weights_M[m] and positions_M[m] < end and ids_L[positions_M[m]] == tokenizer.mask_id
        ]
        if not slots:
            continue
        first, *others = np.split(ids_L[:end], positions_M[slots])
        parts = [first[first != tokenizer.cls_id], *(part[1:] for part in others)]
        texts = [tokenizer.decode(part) for part in parts]
        found.append(
            {
                "texts": [*texts[:-1], texts[-1] + " …" * (end < len(ids_L))],
                "masks": [
                    {
                        "original": tokenizer.piece_text(int(originals_M[m])),
                        "guess": tokenizer.piece_text(int(guesses_M[m])),
                        "probability": float(probabilities_M[m]),
                    }
                    for m in slots
                ],
            }
        )
        if len(found) == _NUM_FILLED_TEXTS:
            break
    return found


def unigram_log_probs(token_counts_V: np.ndarray) -> np.ndarray:
    """Computes float32 log p(token) from counts. One is added to each count, to avoid -inf."""
    counts = np.asarray(token_counts_V, np.float64) + 1.0
    return np.log(counts / counts.sum()).astype(np.float32)


def evaluate_workdir(
    directory: epath.PathLike,
    data: str = "",
    max_sequences: int | None = None,
    step: int | None = None,
    **data_options: Any,
) -> dict[str, Any]:
    """Evaluates a checkpoint of a work directory.

    Args:
      directory: The work directory.
      data: Globs of other texts; if empty, the run's held-out documents are used.
      max_sequences: Overrides `config.eval.max_sequences`.
      step: The step of the checkpoint; None for the newest.
      data_options: Values of `config.data` that replace the run's; None keeps a value. The format
        of other texts is guessed unless it is given.

    Returns:
      The results of `evaluate`, and `step`.

    Raises:
      UserError: The directory holds no pre-training run, or not this step.
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
    check_vocabulary(config, tokenizer.vocab_size, str(directory))
    fit_to_devices(config)
    trainer = make_trainer(config)
    folder = workdir.checkpoint_folder(directory, step)
    with contextlib.closing(Checkpointer(folder, read_only=True)) as checkpointer:
        restored = checkpointer.restore_params(trainer.abstract_state().params, step)
    if restored is None:
        raise UserError(f"{directory} has no checkpoint yet")
    step, params = restored
    with _store_to_evaluate(directory, config, tokenizer, data) as (store, characters_per_token):
        if data or token_counts_V is None:
            token_counts = {"": store.token_counts if token_counts_V is None else token_counts_V}
        else:
            train = TokenStore(workdir.store_directory(directory, config) / "train")
            token_counts = counts_by_source(train)
        with Progress("evaluate", config.eval.max_sequences or None, "sequences") as progress:
            results = evaluate(
                trainer.with_model(model_keys(trainer.stages, step)),
                params,
                trainer.stages[-1],
                store=store,
                tokenizer=tokenizer,
                # The training text of converted weights is unknown. Their baseline uses the
                # frequencies in the scored text, which favors the baseline.
                token_counts=token_counts,
                config=config,
                characters_per_token=characters_per_token,
                advance=progress.advance,
            )
    return {"step": step, **results}


@contextlib.contextmanager
def as_workdir(model: epath.PathLike, step: int | None = None) -> Iterator[epath.Path]:
    """Yields the work directory of a model, or a temporary one for a model of another format.

    Raises:
      UserError: The path holds no known model. Or it is not a work directory, but a step is given
        or there are several processes, which could not all read the temporary directory.
    """
    # Only the command `evaluate` needs the converters.
    from bert_jax.interop import formats
    from bert_jax.interop.native import is_native

    path = epath.Path(files.checked_path(model, "--workdir"))
    if (path / workdir.CORPUS).exists() or is_native(path):
        yield path
        return
    if jax.process_count() > 1:
        raise UserError(f"{path} is not a work directory; convert it with bert_jax.convert first")
    with tempfile.TemporaryDirectory(prefix="bert_jax_evaluate_") as scratch:
        pretrained = formats.read(path, step=step)
        if pretrained.head or not pretrained.tokenizer:
            lack = "is fine-tuned" if pretrained.head else "has no tokenizer"
            raise UserError(f"{path} {lack}, so it cannot be evaluated on text")
        pretrained.complete()
        for warning in pretrained.warnings:
            say(f"warning: {warning}")
        formats.write(pretrained, scratch, "bert_jax")
        yield epath.Path(scratch)


def counts_by_source(train: TokenStore) -> dict[str, np.ndarray]:
    """Returns the token counts of each source of a training split, by name."""
    return {name: split.token_counts for name, split in train.by_source().items()}


def source_table(metrics: Sequence[Metric], results: Mapping[str, Any]) -> Table:
    """Makes a table of the main results of each source."""
    metrics = [metric for metric in metrics if metric.in_progress]
    labels = (metric.label.removesuffix(" (nats)") for metric in metrics)
    title = "Held-out documents by source (in brackets: baseline)"
    table = empty_table(title, "source", *labels, "sequences")
    for name, values in results[BY_SOURCE].items():
        cells = []
        for metric in metrics:
            baseline = values.get(metric.baseline)
            brackets = "" if baseline is None else f" ({metric.text(baseline)})"
            cells.append(metric.text(values[metric.name]) + brackets)
        table.add_row(name, *cells, f"{values['num_sequences']:,}")
    return table


def results_table(
    title: str,
    metrics: Sequence[Metric],
    results: Mapping[str, float],
    before: Mapping[str, float] | None = None,
    prefix: str = "",
) -> Table:
    """Makes a table of the results, each beside its baseline.

    Args:
      before: The results of the initial weights, for another column.
      prefix: The prefix of the names in the results.
    """
    columns = {"initial weights": before} if before else {}
    columns["this model"] = results
    table = empty_table(title, "", *columns, "baseline")
    for metric in metrics:
        name, baseline = prefix + metric.name, results.get(prefix + metric.baseline)
        if all(name in values for values in columns.values()):
            cells = (metric.text(values[name]) for values in columns.values())
            table.add_row(metric.label, *cells, "" if baseline is None else metric.text(baseline))
    numbers = (f"{values[f'{prefix}num_sequences']:,}" for values in columns.values())
    table.add_row("sequences", *numbers, "")
    return table


def progress_text(metrics: Sequence[Metric], results: Mapping[str, float]) -> str:
    """Makes a line of the main results, which is shown during training."""
    texts = []
    for prefix, text in (("", "held out"), (OTHER_TEXT, "other text")):
        parts = []
        for metric in metrics:
            if metric.in_progress and prefix + metric.name in results:
                value = metric.text(results[prefix + metric.name])
                part = f"{metric.label.removesuffix(' (nats)')} {value}"
                if metric.kind == "loss" and metric.baseline:
                    baseline = metric.text(results[prefix + metric.baseline])
                    part += f" ({metric.baseline_label} {baseline})"
                parts.append(part)
        texts += [f"{text}: {', '.join(parts)}"] if parts else []
    return "; ".join(texts)


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
            # Every host can read this directory, because it is inside the work directory.
            scratch = epath.Path(directory) / f"evaluate_{uuid.uuid4().hex}"
            stack.callback(files.remove_directory, scratch)
            split = scratch / "split"
            options = options_of_text(config.data, (data,), config.data.format)
            counts = tokenize_corpus(options, tokenizer, split)
            return str(split), counts["characters"] / counts["tokens"]

        split, characters_per_token = multihost.run_on_process_zero(tokenized)
        yield TokenStore(split), characters_per_token
