"""The config keys of pre-training: their defaults, meanings and ranges."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.config.checks import check_rules, data_rules, run_rules, stored_rules
from bert_jax.config.common import (
    COMMON,
    EVAL_BATCH_SIZE,
    GRADIENT_ACCUMULATION_STEPS,
    MODEL,
    layer_numbers,
)
from bert_jax.config.data import DATA
from bert_jax.config.schema import Field, Owner, Section, build, check
from bert_jax.config.stage_keys import STAGE

PRETRAINING: Section = {
    **COMMON,
    "sharding": dataclasses.replace(COMMON["sharding"], default="auto"),
    "resume_from": Field(
        "",
        "Work directory of a run to continue from: weights, optimizer, step and position in the "
        "data. The schedule may differ. A run with a checkpoint of its own resumes from that.",
        owner=Owner.THIS_RUN,
    ),
    "family": Field(
        "bert",
        "Model family, which determines the names and config keys of an export; a flag may name "
        'another than that of the weights. "MODULE:NAME" is one of your own, as in other keys.',
        owner=Owner.WEIGHTS,
    ),
    "model": MODEL,
    "objective": {
        "terms": Field(
            ("masked_lm", "next_sentence"),
            "Terms of the training loss: masked_lm, next_sentence, sentence_order, "
            "three_way_order, next_token, diffusion, denoising, span_boundary, retromae, "
            "generator, replaced_token, soft_targets, hidden_cosine, or your own. Commas separate "
            "them on the command line.",
        ),
        "weights": Field(
            (1.0, 1.0),
            "Weight of each term's loss in the sum, in the order of terms.",
            at_least=0,
        ),
        "teacher": Field(
            "",
            "A trained model with a masked-LM head, in any format that convert can read. It "
            "determines the tokenizer and the vocabulary. soft_targets learns its predictions, and "
            "hidden_cosine its last hidden states.",
        ),
        "teacher_layers": Field(
            "",
            "Blocks of the teacher that a new run begins with, together with the teacher's "
            'embeddings: "0,2,4,7,9,11" for a student of 6 blocks. 0 is the first block. The '
            "widths must be the same. If empty, all weights are new.",
        ),
        "temperature": Field(
            2.0, "Divisor of the logits of teacher and student in soft_targets.", at_least=1
        ),
    },
    "data": DATA,
    "train": {
        "num_steps": Field(
            1_000_000,
            "Optimizer steps of the run, over all stages.",
            above=0,
            owner=Owner.NONE,
        ),
        "batch_size": Field(
            256,
            "Rows in each step, over all devices: sequences, or several packed sequences each "
            "(data.max_pairs_per_row).",
            above=0,
        ),
        "gradient_accumulation_steps": GRADIENT_ACCUMULATION_STEPS,
        "stages": Field(
            ({"fraction": 0.9, "max_seq_length": 128}, {"fraction": 0.1, "max_seq_length": 512}),
            "Parts of the run, each made by `stage()`. Their fractions must add up to 1. A stage "
            "with fraction 0 is skipped. In a run that goes on, the stages keep their steps, and "
            "the last one takes further steps; stages may be appended, and those that have not "
            "begun may change, with a larger num_steps.",
            elements=STAGE,
            owner=Owner.NONE,
        ),
    },
    "eval": {
        "every_steps": Field(
            10_000,
            "Steps between evaluations on the held-out documents. 0 evaluates only at the end.",
            at_least=0,
            owner=Owner.NONE,
        ),
        "max_sequences": Field(
            2048,
            "Largest number of sequences in an evaluation. 0 means all.",
            at_least=0,
            owner=Owner.NONE,
        ),
        "batch_size": EVAL_BATCH_SIZE,
        "other_text": Field(
            (),
            "Text of another kind to score beside the held-out documents, as data.input: it shows "
            "what a model forgets while it learns. Its metrics begin with eval_other_. It must not "
            "be part of the text to train on.",
        ),
    },
}


def default_config() -> ConfigDict:
    """Returns BERT-base's config, locked; the files in configs/ start from it."""
    return build(PRETRAINING, {}).lock()


def teacher_layers(config: ConfigDict) -> tuple[int, ...]:
    return layer_numbers(config.objective.teacher_layers, "config.objective.teacher_layers")


def from_dict(values: Mapping[str, Any]) -> ConfigDict:
    """Converts the stored form of a config back (inverts `to_dict`); missing keys get defaults."""
    config = build(PRETRAINING, values)
    check(config, PRETRAINING)
    check_rules(stored_rules(config), config)
    return config


def validate(config: ConfigDict, *, is_given: bool = False) -> None:
    """Checks everything that can be checked before any work is done.

    Args:
      is_given: Whether the config is as the user gave it. If the values of a model may still
        replace some of it, how the values fit together is left out.
    """
    if "task" in config:
        raise UserError(
            f"the config is for fine-tuning ({config.task}), which python -m bert_jax.finetune "
            "takes; this command needs one for pre-training"
        )
    check(config, PRETRAINING)
    if not (is_given and config.init_from):
        check_rules(run_rules(config), config)


def validate_data(data: ConfigDict) -> None:
    check(data, DATA, "config.data.")
    config = ConfigDict({"data": data})
    check_rules(data_rules(config), config)
