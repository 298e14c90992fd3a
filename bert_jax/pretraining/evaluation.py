"""Scores a model and baselines on held-out text.

The rows and masks do not depend on `config.seed`, and are the same at every step. The masks follow
BERT's rules, whatever training masks; those of corruption=denoising follow BART's, and a row of
corruption=diffusion is masked at eight rates.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from bert_jax.base.batch import (
    DIFFUSION_FIELDS,
    ENCODER_FIELDS,
    HELD_OUT_RATES,
    MASKED_LM_FIELDS,
)
from bert_jax.base.errors import UserError
from bert_jax.batches.evaluation_batches import evaluation_batches
from bert_jax.models.greedy_decoding import denoised
from bert_jax.objectives.language_model import FILLED_TEXTS
from bert_jax.objectives.term import Metric
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.writing import after_each_step, filled, may_be_written, text_so_far
from bert_jax.parallel import multihost
from bert_jax.parallel.mesh import num_data_shards
from bert_jax.pretraining.input import evaluation_spec
from bert_jax.store.token_store import TokenStore
from bert_jax.tokenizers import Tokenizer
from bert_jax.training.loop import DivergedError
from bert_jax.training.metrics import BY_SOURCE, OTHER_TEXT
from bert_jax.training.stages import model_keys, stage_of
from bert_jax.training.trainer import Trainer

# The number of rows that are shown with filled masks, and about how many tokens of each.
_NUM_FILLED_TEXTS = 4
_FILLED_TOKENS = 48
# The number of steps in which a model of masked diffusion writes as many tokens.
_WRITING_STEPS = 8


def evaluate(
    trainer: Trainer,
    params: Any,
    step: int,
    *,
    store: TokenStore,
    tokenizer: Tokenizer,
    token_counts: Mapping[str, np.ndarray],
    config: ConfigDict,
    characters_per_token: float = 0.0,
    advance: Callable[[int], None] = lambda sequences: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Scores `params` on a split of a token store, in the rows of the stage of their step.

    Args:
      step: The step of `params`; 0 for initial or converted weights, which get the rows of the
        last stage.
      token_counts: int64 [V] token counts of the *training* text of each source, by name, for the
        baseline.
      characters_per_token: The mean length of the tokens of `store`, for the loss per character; 0
        if it is unknown.
      stop: Called after every batch; True ends the evaluation without results.

    Returns:
      The metrics and baselines of all terms (see `Term.results`), `num_sequences` and, for a
      model that fills masks, some `filled_texts`, or after the last step of a model with a decoder
      its `denoised_text`, and of one of masked diffusion its `written_text`; empty if stopped. If
      the split has several sources, each has an equal part of `config.eval.max_sequences`, at least
      one sequence, and `by_source` has the metrics of each.

    Raises:
      DivergedError: A metric is not finite.
    """
    stage = stage_of(trainer.stages, step) if step else trainer.stages[-1]
    trainer = trainer.with_model(model_keys(trainer.stages, step))
    num_shards = num_data_shards(trainer.mesh)
    sources = store.by_source()
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
            is_last = step == trainer.stages[-1].end_step
            if is_last and not masks and trainer.model_config.num_decoder_layers:
                masks.append(denoised_text(trainer, params, batch, tokenizer))
            if is_last and not masks and DIFFUSION_FIELDS.keys() <= batch.keys():
                masks.append(written_text(trainer, params, batch, tokenizer))
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
    """
    found: list[dict[str, Any]] = []
    for ids_L, positions_M, originals_M, weights_M, guesses_M, probabilities_M in zip(
        *(guesses[name] for name in ("input_ids", *MASKED_LM_FIELDS)),
        guesses["guessed_ids"],
        guesses["probabilities"],
        strict=True,
    ):
        # Only padding at the end: the id may also be that of [SEP].
        ids_L = ids_L[: 1 + np.flatnonzero(ids_L != tokenizer.pad_id)[-1]]
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


def denoised_text(
    trainer: Trainer, params: Any, batch: Mapping[str, jax.Array], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Returns the first row and the beginning of what the decoder writes for it, as filled texts.

    Its one mask has the `original` and the `guess`.
    """
    length = min(_FILLED_TOKENS, trainer.model_config.max_position_embeddings)
    options = {"sep_id": tokenizer.sep_id, "pad_id": tokenizer.pad_id, "length": length}

    def first(params: Any, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, ...]:
        rows = batch["input_ids"], batch["attention_mask"]
        written_BxT = denoised(trainer.model_config, params["bert"], *rows, **options)
        # No token is written after the last but one.
        return batch["input_ids"][0], written_BxT[0], batch["labels"][0, : length - 2]

    replicated = trainer.layout.replicated
    program = jax.jit(trainer.layout.in_scope()(first), out_shardings=replicated)
    hidden = {*tokenizer.special_ids} - {tokenizer.mask_id}
    corrupted, guess, original = (
        tokenizer.decode([i for i in row if i not in hidden])
        for row in jax.device_get(program(params, batch))
    )
    return {"texts": [f"{corrupted} →", ""], "masks": [{"original": original, "guess": guess}]}


def written_text(
    trainer: Trainer, params: Any, batch: Mapping[str, jax.Array], tokenizer: Tokenizer
) -> dict[str, Any]:
    """Returns how a model of masked diffusion writes the first masks of a row, as filled texts.

    The row is the one of the first text's copies in which most is masked. `texts` has it before the
    first step and after each, and `original` as it was.
    """
    config, (term,) = trainer.model_config, make_terms(["masked_lm"])
    may_write_W, key = may_be_written(tokenizer, config), jax.random.key(0)
    options = {"steps": _WRITING_STEPS, "block": _FILLED_TOKENS, "is_random": False}
    # The kernels of attention need a row for each shard of a batch; the first sample is shown.
    options["samples"] = num_data_shards(trainer.mesh)

    def first(params: Any, batch: Mapping[str, jax.Array]) -> tuple[jax.Array, ...]:
        is_masked_CxL = (batch["input_ids"] != batch["original_ids"])[:HELD_OUT_RATES]
        copy = jnp.argmax(jnp.sum(is_masked_CxL, axis=1))
        (at_M,) = jnp.nonzero(is_masked_CxL[copy], size=_FILLED_TOKENS, fill_value=-1)
        row = {name: batch[name][copy, None] for name in ENCODER_FIELDS}
        operands = row, at_M[None], may_write_W, key, 1.0
        filled_1xSx2xM = filled(config, params, *operands, term=term, **options)
        return row["input_ids"][0], batch["original_ids"][copy], at_M, filled_1xSx2xM[0, 0]

    replicated = trainer.layout.replicated
    program = jax.jit(trainer.layout.in_scope()(first), out_shardings=replicated)
    ids_L, original_L, at_M, filled_2xM = jax.device_get(program(params, batch))
    number = int(np.sum(at_M >= 0))
    # What follows the last of these masks may have more of them.
    end = at_M[number - 1] + 1 if number == _FILLED_TOKENS else len(ids_L)
    written = after_each_step(ids_L[:end], at_M[:number], filled_2xM[:, :number])
    *texts, original = (
        text_so_far(tokenizer, ids_L) for ids_L in (ids_L[:end], *written, original_L[:end])
    )
    return {"texts": texts, "masks": [], "original": original}


def unigram_log_probs(token_counts_V: np.ndarray) -> np.ndarray:
    """Computes float32 log p(token) from counts. One is added to each count, to avoid -inf."""
    counts = np.asarray(token_counts_V, np.float64) + 1.0
    return np.log(counts / counts.sum()).astype(np.float32)


def counts_by_source(train: TokenStore) -> dict[str, np.ndarray]:
    return {name: split.token_counts for name, split in train.by_source().items()}


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
