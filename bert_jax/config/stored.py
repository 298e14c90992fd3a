"""Reads configs that version 0.1 stored, which have keys that are gone."""

from collections.abc import Mapping
from typing import Any

from bert_jax.base.errors import UserError

# Keys of training, input and monitoring. A model is the same with any of their values.
_DROPPED = frozenset(
    {
        "checkpoint.keep_best",
        "compile_effort",
        "data.group_by_length",
        "data.max_document_characters",
        "data.part_bytes",
        "data.prefetch_batches",
        "data.random_document",
        "data.vocab_from",
        "eval.seed",
        "init_recipe",
        "log.trackers",
        "max_replicated_fraction",
        "ner.scheme",
        "objective.teacher_head",
        "optimizer.frozen_layers",
        "optimizer.layer_decay_offset",
        "overlap_collectives",
        "sharding_rules",
        "train.early_stopping_patience",
        "train.extra",
        "train.freeze_positions",
    }
)
# Keys with the only value that this version has.
_FIXED = {"scan_layers": False, "train.bilstm_size": 0, "train.features": ""}


def without_removed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copies a stored config without the keys that are gone."""

    def copied(section: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        kept = {}
        for key, value in section.items():
            path = f"{prefix}{key}"
            if path in _FIXED and value != _FIXED[path]:
                raise UserError(f"config.{path} is {value!r}, which only version 0.1 reads")
            if path not in _DROPPED and path not in _FIXED:
                kept[key] = copied(value, f"{path}.") if isinstance(value, Mapping) else value
        return kept

    kept = copied(values, "")
    train = values.get("train", {})
    if sum(train.get("extra", {}).get("steps", ())):
        # The run ended after these steps.
        first = train["extra"]["after_step"] or train["num_steps"]
        kept["train"]["num_steps"] = first + sum(train["extra"]["steps"])
    return kept
