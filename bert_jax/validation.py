"""What a config must be, checked once, before any work is done."""

import difflib
import math
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax import storage
from bert_jax.config import default_config, flatten
from bert_jax.errors import UserError

SHARDING_PRESETS = ("dp", "fsdp", "tp", "fsdp_tp")
REMAT_POLICIES = ("none", "dots", "full")
HIDDEN_ACTIVATIONS = ("gelu", "gelu_new", "relu")


def validate(config: ConfigDict) -> None:
    """Checks everything that can be known before any work is done.

    Raises:
      UserError: names the key, its value and what would be right.
    """
    if "task" in config:
        raise UserError(
            f"the config is one of fine-tuning ({config.task}): python -m bert_jax.finetune"
        )
    check_keys(config, default_config())
    _check_stage_keys(config)
    check_values(config, _CHOICES, _POSITIVE, _NOT_NEGATIVE, _SHARES)
    check_heldout_fraction(config.data.heldout_fraction)
    check_static_data(config.data)
    for path in _PATHS:
        storage.check_scheme(_get(config, path), f"config.{path}")
    for item in config.data.input:
        storage.check_scheme(item, "config.data.input")
    if config.init_from and config.resume_from:
        raise UserError(
            "config.init_from and config.resume_from are both set; give the one from which the "
            "run is to start"
        )
    _check_model(config.model)
    check_mesh(config.mesh)
    _check_stages(config)
    check_profile(config.profile, config.train.num_steps)
    check_finite(config)


def check_keys(config: ConfigDict, defaults: ConfigDict) -> None:
    """Refuses keys that the defaults do not have, and lacks of those that they have."""
    known = dict(flatten(defaults))
    given = dict(flatten(config))
    for path in given:
        if path not in known:
            near = difflib.get_close_matches(path, known, n=1, cutoff=0.0)
            raise UserError(f"config.{path} is not a known key; did you mean config.{near[0]}?")
    for path in known:
        if path not in given:
            raise UserError(f"config.{path} is missing; start from config.default_config()")


def check_values(
    config: ConfigDict,
    choices: dict[str, Sequence[str]],
    positive: Sequence[str],
    not_negative: Sequence[str],
    shares: Sequence[str] = (),
) -> None:
    """Refuses values out of range, of the keys that are named and of those all configs have."""
    for path, allowed in (_SHARED_CHOICES | choices).items():
        value = _get(config, path)
        if value not in allowed:
            known = ", ".join(choice or "'' (empty)" for choice in allowed)
            raise UserError(f"config.{path} is {value!r}; it must be one of {known}")
    for path in (*_SHARED_POSITIVE, *positive):
        require(config, path, _get(config, path) > 0, "it must be above 0")
    for path in (*_SHARED_NOT_NEGATIVE, *not_negative):
        require(config, path, _get(config, path) >= 0, "it must not be negative")
    for path in (*_SHARED_SHARES, *shares):
        require(config, path, 0 <= _get(config, path) < 1, "it must be at least 0 and below 1")
    # JAX makes its keys of 64 bits.
    require(config, "seed", _get(config, "seed") < 2**63, "it must be below 2**63")
    share = "max_replicated_share"
    require(config, share, 0 <= _get(config, share) <= 1, "it must be from 0 to 1")


def check_finite(config: ConfigDict) -> None:
    """Refuses infinities and NaN, of which no value has a use."""
    for path, value in flatten(config):
        if isinstance(value, float):
            require(config, path, math.isfinite(value), "it must be a finite number")


def check_heldout_fraction(fraction: float) -> None:
    """Refuses to hold out more documents than are trained on."""
    if not 0 <= fraction <= 0.5:
        raise UserError(f"config.data.heldout_fraction is {fraction}; it must be from 0 to 0.5")


def check_static_data(data: ConfigDict) -> None:
    """Refuses what would have no effect on records whose pairs and masks are written."""
    if data.format != "google_tfrecord":
        return
    if not (data.vocab or data.store):
        raise UserError(
            "config.data.vocab is empty; with config.data.format=google_tfrecord it must be the "
            "vocab.txt that the records were written with"
        )
    defaults = default_config().data
    for key in _NOT_OF_STATIC_DATA:
        # Nothing is held out of records, by default or asked for.
        if data[key] != defaults[key] and (key, data[key]) != ("heldout_fraction", 0):
            raise UserError(
                f"config.data.{key} is {data[key]}, but it has no effect on google_tfrecord, whose "
                f"records are trained on as they were written; leave it at {defaults[key]}"
            )


def check_vocabulary(config: ConfigDict, vocab_size: int, source: str) -> None:
    """Refuses a model whose embedding and vocabulary differ in size.

    An id beyond the embedding would not fail on a device: it would train on garbage.
    """
    if config.model.vocab_size != vocab_size:
        raise UserError(
            f"config.model.vocab_size is {config.model.vocab_size} but the vocabulary of "
            f"{source} has {vocab_size} entries; set --config.model.vocab_size={vocab_size}"
        )


def check_batch(config: ConfigDict, data_shards: int, num_processes: int) -> None:
    """Refuses batches that do not divide over the devices that share them.

    Args:
      config: A validated config.
      data_shards: Product of the mesh axes that the batch is split over.
      num_processes: Hosts; each reads its own part.
    """
    accumulation = config.train.gradient_accumulation_steps
    parts = math.lcm(data_shards, num_processes) * accumulation
    for i, entry in enumerate(config.train.stages):
        path = f"train.stages[{i}].batch_size" if entry.batch_size else "train.batch_size"
        size = entry.batch_size or config.train.batch_size
        if entry.fraction and size % parts:
            raise UserError(
                f"config.{path} is {size}, which does not divide over {data_shards} data shards "
                f"on {num_processes} host(s) times {accumulation} gradient accumulation step(s); "
                f"the nearest that does is {max(1, round(size / parts)) * parts}"
            )


# Of the keys that pre-training and fine-tuning have in common.
_SHARED_CHOICES = {
    "dtype": ("float32", "bfloat16"),
    "sharding": SHARDING_PRESETS,
    "remat": REMAT_POLICIES,
    "optimizer.name": ("adamw", "lamb"),
}
_SHARED_POSITIVE = (
    "train.batch_size",
    "train.gradient_accumulation_steps",
    "optimizer.eps",
    "schedule.peak_learning_rate",
    "schedule.decay_power",
    "checkpoint.every_steps",
    "checkpoint.keep",
    "eval.batch_size",
    "log.every_steps",
    "profile.start_step",
)
_SHARED_NOT_NEGATIVE = (
    "seed",
    "sinusoidal_positions",
    "optimizer.weight_decay",
    "optimizer.max_grad_norm",
    "schedule.warmup_steps",
    "checkpoint.keep_every_steps",
    "eval.every_steps",
    "profile.num_steps",
)
_SHARED_SHARES = (
    "model.hidden_dropout_prob",
    "model.attention_probs_dropout_prob",
    "optimizer.b1",
    "optimizer.b2",
)
# Of pre-training's own.
_CHOICES = {
    "model.hidden_act": HIDDEN_ACTIVATIONS,
    "data.format": ("auto", "documents", "sentences", "jsonl", "google_tfrecord"),
    "data.tokenizer": ("wordpiece", "sentencepiece"),
    "data.sentencepiece_type": ("unigram", "bpe"),
    "data.bad_documents": ("refuse", "skip"),
}
_POSITIVE = (
    "model.vocab_size",
    "model.hidden_size",
    "model.num_hidden_layers",
    "model.num_attention_heads",
    "model.intermediate_size",
    "model.max_position_embeddings",
    "model.initializer_range",
    "model.layer_norm_eps",
    "data.max_input_chars_per_word",
    "data.masked_lm_prob",
    "data.shuffle_sentences",
    "data.num_threads",
    "data.prefetch_batches",
    "train.num_steps",
)
_NOT_NEGATIVE = (
    "data.num_processes",
    "eval.max_sequences",
    "eval.seed",
)
_SHARES = (
    "data.masked_lm_prob",
    "data.short_seq_prob",
)
_NOT_OF_STATIC_DATA = (
    "text_field",
    "bad_documents",
    "heldout_fraction",
    "masked_lm_prob",
    "whole_word_masking",
    "short_seq_prob",
    "shuffle_sentences",
)
_PATHS = ("workdir", "data.store", "data.vocab", "init_from", "resume_from")


def _check_stage_keys(config: ConfigDict) -> None:
    stage_keys = set(default_config().train.stages[0])
    for i, entry in enumerate(config.train.stages):
        for key in set(entry) ^ stage_keys:
            near = difflib.get_close_matches(key, stage_keys, n=1, cutoff=0.0)
            raise UserError(
                f"config.train.stages[{i}].{key} is not known or missing; stages are built "
                f"with config.stage(), and the nearest key is {near[0]!r}"
            )


def _check_model(model: ConfigDict) -> None:
    if model.hidden_size % model.num_attention_heads:
        raise UserError(
            f"config.model.num_attention_heads is {model.num_attention_heads}, which does not "
            f"divide config.model.hidden_size, {model.hidden_size}"
        )
    if model.type_vocab_size < 2:
        raise UserError(
            f"config.model.type_vocab_size is {model.type_vocab_size}; pairs of sentences need 2"
        )


def check_mesh(mesh: ConfigDict) -> None:
    """Refuses sizes that no number of devices has."""
    wrong = [axis for axis, size in mesh.items() if size != -1 and size < 1]
    if wrong:
        raise UserError(f"config.mesh.{wrong[0]} is {mesh[wrong[0]]}; it must be above 0, or -1")
    if sum(size == -1 for size in mesh.values()) > 1:
        raise UserError("config.mesh has more than one axis of size -1; only one can be inferred")


def _check_stages(config: ConfigDict) -> None:
    stages = config.train.stages
    total = sum(entry.fraction for entry in stages)
    if any(entry.fraction < 0 for entry in stages) or not math.isclose(total, 1, abs_tol=1e-6):
        raise UserError(f"the fractions of config.train.stages add up to {total:g}; it must be 1")
    rows = config.model.max_position_embeddings
    for i, entry in enumerate(stages):
        here, length = f"config.train.stages[{i}]", entry.max_seq_length
        if length > rows:
            raise UserError(
                f"{here}.max_seq_length is {length}, longer than the {rows} positions of "
                "config.model.max_position_embeddings"
            )
        if length < 5:
            raise UserError(
                f"{here}.max_seq_length is {length}; [CLS] A [SEP] B [SEP] needs at least 5"
            )
        # [CLS] and both [SEP] are never masked.
        if not 0 < entry.max_predictions_per_seq <= length - 3:
            raise UserError(
                f"{here}.max_predictions_per_seq is {entry.max_predictions_per_seq}; a sequence "
                f"of {length} has at most {length - 3} tokens to predict, and at least 1 is needed"
            )
        if min(entry.batch_size, entry.peak_learning_rate, entry.warmup_steps) < 0:
            raise UserError(f"{here} has a negative batch_size, peak_learning_rate or warmup_steps")


def check_profile(profile: ConfigDict, num_steps: int) -> None:
    """Refuses to trace steps that the run does not have."""
    first, count = profile.start_step, profile.num_steps
    last = first + count - 1
    if count and last > num_steps:
        raise UserError(
            f"config.profile asks for steps {first:,} to {last:,}, but the run ends with step "
            f"{num_steps:,}; set an earlier config.profile.start_step or fewer "
            "config.profile.num_steps"
        )


def require(config: ConfigDict, path: str, condition: bool, rule: str) -> None:
    """Refuses the value of a key unless the condition holds."""
    if not condition:
        raise UserError(f"config.{path} is {_get(config, path)}; {rule}")


def _get(config: ConfigDict, path: str) -> Any:
    for key in path.split("."):
        config = config[key]
    return config
