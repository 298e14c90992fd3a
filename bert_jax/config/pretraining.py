"""The config keys of pre-training: their defaults, meanings and ranges."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.config.common import (
    COMMON,
    EVAL_BATCH_SIZE,
    GRADIENT_ACCUMULATION_STEPS,
    MODEL,
    check_common,
    check_model,
    check_profile,
    layer_numbers,
)
from bert_jax.config.data import DATA, check_data
from bert_jax.config.packing import check_packing, packed_predictions
from bert_jax.config.schema import Change, Field, Section, build, check, free_field, steering_field

STAGE: Section = {
    "fraction": Field(1.0, "Fraction of train.num_steps.", at_least=0, at_most=1),
    "max_seq_length": Field(
        128, "Tokens in each sequence, including [CLS] and both [SEP].", at_least=5
    ),
    "max_predictions_per_seq": Field(
        0,
        "Largest number of masked positions in a sequence. 0 derives it: max_seq_length times "
        "data.masked_lm_prob, rounded up to a multiple of 5 (20 for 128 tokens and 80 for 512, as "
        "in BERT), and as many as data.max_pairs_per_row needs.",
        at_least=0,
    ),
    "batch_size": Field(
        0, "Sequences in each step, over all devices. 0 means train.batch_size.", at_least=0
    ),
    "peak_learning_rate": Field(
        0.0,
        "If above 0, the stage has its own schedule with this peak, which starts at the stage's "
        "first step; the optimizer keeps its moments. 0 means the schedule of the run.",
        at_least=0,
    ),
    "warmup_steps": Field(
        0.0, "Warm-up of the stage's own schedule, as in schedule.warmup_steps.", at_least=0
    ),
}

PRETRAINING: Section = {
    **COMMON,
    "sharding": dataclasses.replace(COMMON["sharding"], default="auto"),
    "resume_from": steering_field(
        "",
        "Work directory of a run to continue from with its full state: weights, optimizer, step "
        "and position in the data. The schedule may differ. A run that already has its own "
        "checkpoint resumes from that instead.",
        is_path=True,
    ),
    "family": Field(
        "bert",
        "Model family, which determines the names and config keys of an export. A built-in name, "
        'or "MODULE:NAME" for your own, as for the terms, rows and corruptions below.',
        of_weights=True,
    ),
    "model": MODEL,
    "objective": {
        "terms": Field(
            ("masked_lm", "next_sentence"),
            "Terms of the training loss: masked_lm, next_sentence, sentence_order, "
            "three_way_order, next_token, span_boundary, generator, replaced_token, soft_targets, "
            "hidden_cosine, or your own. Commas separate them on the command line.",
        ),
        "weights": Field(
            (1.0, 1.0), "Weight of each term's loss in the sum, in the order of terms.", at_least=0
        ),
        "teacher": Field(
            "",
            "A trained model with a masked-LM head, in any format that convert can read. It "
            "determines the tokenizer and the vocabulary. soft_targets learns its predictions, and "
            "hidden_cosine its last hidden states.",
            is_path=True,
        ),
        "teacher_layers": Field(
            "",
            "Blocks of the teacher that a new run begins with, together with the teacher's "
            'embeddings: "0,2,4,7,9,11" for a student of 6 blocks. 0 is the first block. The '
            "widths must be the same. If empty, all weights are new.",
        ),
        "teacher_head": Field(
            False,
            "Whether a run that begins with teacher_layers also takes the dense layer and the "
            "LayerNorm of the teacher's masked-LM head.",
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
            change=Change.WITH_WARNING,
        ),
        "batch_size": Field(256, "Sequences in each step, over all devices.", above=0),
        "gradient_accumulation_steps": GRADIENT_ACCUMULATION_STEPS,
        "freeze_positions": Field(
            False, "Whether the position table is not trained and keeps its initial values."
        ),
        "stages": Field(
            (
                {"fraction": 0.9, "max_seq_length": 128},
                {"fraction": 0.1, "max_seq_length": 512},
            ),
            "Parts of the run, each made by `stage()`. Their fractions must add up to 1. A stage "
            "with fraction 0 is skipped.",
            elements=STAGE,
        ),
        "early_stopping_patience": free_field(
            0,
            "Number of successive evaluations without a lower held-out loss after which the run "
            "ends. The loss is the sum of the terms' losses with objective.weights. A change of "
            "the sequence length starts a new count. 0 trains to the last step.",
            at_least=0,
        ),
        "extra": {
            "steps": Field(
                (0,),
                "Steps after num_steps, to train a finished run further. They extend the last "
                "stage: same lengths, next examples. Each value is a part with its own warm-up and "
                "decay to 0. Commas separate parts on the command line.",
                at_least=0,
                change=Change.WITH_WARNING,
            ),
            "peak_learning_rate": Field(
                0.0,
                "Learning rate that the warm-up of each part of extra.steps rises toward. 0 means "
                "the peak of the last stage.",
                at_least=0,
                change=Change.WITH_WARNING,
            ),
            "warmup_steps": Field(
                0.1,
                "Warm-up of each part of extra.steps. A value below 1 is a fraction of its steps.",
                at_least=0,
                change=Change.WITH_WARNING,
            ),
        },
    },
    "checkpoint": {
        **COMMON["checkpoint"],
        "keep_best": free_field(
            False,
            "Whether the parameters with the lowest held-out loss are kept too, in WORKDIR/best. "
            "predict, evaluate, convert and init_from then use these. When the sequence length "
            "changes, the search for the best begins anew.",
        ),
    },
    "eval": {
        "every_steps": free_field(
            10_000,
            "Steps between evaluations on the held-out documents. 0 evaluates only at the end.",
            at_least=0,
        ),
        "max_sequences": free_field(
            2048, "Largest number of sequences in an evaluation. 0 means all.", at_least=0
        ),
        "batch_size": EVAL_BATCH_SIZE,
        "seed": free_field(
            12345,
            "Seed of the evaluation's fixed pairs and masks. No other seed affects them.",
            at_least=0,
        ),
    },
}


def default_config() -> ConfigDict:
    """Returns BERT-base's config, locked; the files in configs/ start from it."""
    return build(PRETRAINING, {}).lock()


def teacher_layers(config: ConfigDict) -> tuple[int, ...]:
    """Returns the layers of `config.objective.teacher_layers`.

    Raises:
      UserError: They are not numbers.
    """
    return layer_numbers(config.objective.teacher_layers, "config.objective.teacher_layers")


def from_dict(values: Mapping[str, Any]) -> ConfigDict:
    """Converts the stored form of a config back (inverts `to_dict`); missing keys get defaults.

    Raises:
      UserError: There is an unknown key, or a value of the wrong type.
    """
    if "model_type" in values:
        raise UserError("the config of a Hugging Face model, not of a run of bert_jax")
    try:
        config = build(PRETRAINING, values)
        check_model_and_steps(config)
    except UserError as error:
        raise UserError(f"not a config of this version of bert_jax: {error}") from error
    return config


def validate(config: ConfigDict) -> None:
    """Checks everything that can be checked before any work is done.

    Raises:
      UserError: The message names the key, its value and the allowed values.
    """
    if "task" in config:
        raise UserError(
            f"the config is for fine-tuning ({config.task}), which python -m bert_jax.finetune "
            "takes; this command needs one for pre-training"
        )
    check_model_and_steps(config)
    if config.init_from and config.resume_from:
        raise UserError(
            "config.init_from and config.resume_from are both set; set only the one to start from"
        )
    if not config.eval.every_steps:
        for key, value in (
            ("checkpoint.keep_best", config.checkpoint.keep_best),
            ("train.early_stopping_patience", config.train.early_stopping_patience),
        ):
            if value:
                raise UserError(
                    f"config.{key} is {value}, but config.eval.every_steps is 0; set it to the "
                    "number of steps between evaluations"
                )
    has_types = config.data.special_tokens in ("bert", "albert")
    is_paired = config.data.rows in ("pairs", "halves")
    if is_paired and has_types and config.model.type_vocab_size < 2:
        raise UserError(
            f"config.model.type_vocab_size is {config.model.type_vocab_size}, but "
            f"config.data.rows={config.data.rows} needs at least 2"
        )
    check_data(config.data)
    check_packing(config)
    check_common(config)
    check_profile(config.profile, total_steps(config.train))


def validate_data(data: ConfigDict) -> None:
    """Checks only the section `data` of a config.

    Raises:
      UserError: The message names the key, its value and the allowed values.
    """
    check(data, PRETRAINING["data"], "config.data.")
    check_data(data)


def check_model_and_steps(config: ConfigDict) -> None:
    """Checks the rules that the configs of old runs and of converted weights must follow too.

    Raises:
      UserError: The message names the key, its value and the allowed values.
    """
    check(config, PRETRAINING)
    check_model(config.model)
    _check_objective(config)
    _check_stages(
        config.train.stages, config.model.max_position_embeddings, config.data.masked_lm_prob
    )


def _check_objective(config: ConfigDict) -> None:
    model, objective, terms = config.model, config.objective, config.objective.terms
    generator_width = round(model.hidden_size * model.generator_size)
    if "generator" in terms and not generator_width:
        raise UserError(
            f"config.model.generator_size is {model.generator_size}; the term generator needs a "
            "fraction of config.model.hidden_size above 0"
        )
    if generator_width % max(1, generator_width // 64):
        raise UserError(
            f"config.model.generator_size is {model.generator_size}, which makes the generator "
            f"{generator_width} units wide; its {generator_width // 64} heads, one for every 64 "
            "units, must divide this width"
        )
    if not terms or len(terms) != len(objective.weights):
        raise UserError(
            f"config.objective.weights is {objective.weights!r}; it must have one weight for each "
            f"of config.objective.terms, {terms!r}, and there must be at least one term"
        )
    if len(set(terms)) < len(terms):
        raise UserError(f"config.objective.terms is {terms!r}; each term must be named once")
    if not any(objective.weights):
        raise UserError(
            f"config.objective.weights is {objective.weights!r}; at least one must be above 0"
        )


def stage(**values: Any) -> ConfigDict:
    """Makes a stage for `train.stages`; `STAGE` defines the keys."""
    return build(STAGE, values, "train.stages[].")


def max_predictions(stage: ConfigDict, masked_lm_prob: float, max_pairs_per_row: int = 1) -> int:
    """Returns the largest number of predictions in a row of a stage."""
    return stage.max_predictions_per_seq or max(
        derived_predictions(stage.max_seq_length, masked_lm_prob),
        packed_predictions(stage.max_seq_length, masked_lm_prob, max_pairs_per_row),
    )


def derived_predictions(max_seq_length: int, masked_lm_prob: float) -> int:
    """Computes the number of predictions that a sequence of this length needs."""
    fives = math.ceil(round(max_seq_length * masked_lm_prob / 5, 6))
    # [CLS] and both [SEP] tokens are not predicted.
    return min(5 * fives, max_seq_length - 3)


def prediction_warnings(config: ConfigDict) -> list[str]:
    """Warns of each stage that predicts fewer tokens than data.masked_lm_prob."""
    if config.data.corruption == "none" or config.data.format == "google_tfrecord":
        return []
    rate, warnings = config.data.masked_lm_prob, []
    for i, stage in enumerate(config.train.stages):
        limit, length = max_predictions(stage, rate), stage.max_seq_length
        if stage.fraction and limit < 0.9 * rate * length:
            warnings.append(
                f"config.train.stages[{i}].max_predictions_per_seq is {limit}, so only "
                f"{limit / length:.1%} of the tokens in full rows of {length} are predicted, not "
                f"config.data.masked_lm_prob={rate:g}; 0 derives the number from the length"
            )
    return warnings


def lamb_stages() -> tuple[ConfigDict, ConfigDict]:
    """Makes the mixed-batch stages of You et al. 2020 (arXiv:1904.00962): 7,038 + 1,563 steps."""
    first_steps, second_steps = 7038, 1563
    return (
        stage(
            fraction=first_steps / (first_steps + second_steps),
            max_seq_length=128,
            max_predictions_per_seq=20,
            batch_size=65536,
            peak_learning_rate=6e-3,
            warmup_steps=0.2843,
        ),
        stage(
            fraction=second_steps / (first_steps + second_steps),
            max_seq_length=512,
            max_predictions_per_seq=80,
            batch_size=32768,
            peak_learning_rate=4e-3,
            warmup_steps=0.128,
        ),
    )


def total_steps(train: ConfigDict) -> int:
    """Returns the number of steps of a run, including `train.extra`."""
    return train.num_steps + sum(train.extra.steps)


def _check_stages(
    stages: Sequence[ConfigDict], max_position_embeddings: int, masked_lm_prob: float
) -> None:
    """Refuses stages whose fractions do not add up to 1, or with impossible sequences."""
    total = sum(stage.fraction for stage in stages)
    if not math.isclose(total, 1, abs_tol=1e-6):
        raise UserError(f"the fractions of config.train.stages add up to {total:g}, not to 1")
    for i, stage in enumerate(stages):
        path, length = f"config.train.stages[{i}]", stage.max_seq_length
        if length > max_position_embeddings:
            raise UserError(
                f"{path}.max_seq_length is {length}, longer than the "
                f"{max_position_embeddings} positions of config.model.max_position_embeddings"
            )
        # [CLS] and both [SEP] tokens are never predicted.
        if stage.max_predictions_per_seq > length - 3:
            raise UserError(
                f"{path}.max_predictions_per_seq is {stage.max_predictions_per_seq}; a sequence "
                f"of {length} has at most {length - 3} tokens to predict"
            )
        if not max_predictions(stage, masked_lm_prob):
            raise UserError(
                f"config.data.masked_lm_prob is {masked_lm_prob:g}, so small that no token of a "
                f"sequence of {length} is predicted; BERT's is 0.15"
            )
