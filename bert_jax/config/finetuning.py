"""The config keys of fine-tuning: their defaults, meanings and ranges.

`bert_jax.config.common` has the keys that mean the same in pre-training.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.base.parts import check_part
from bert_jax.config.checks import Rule, check_rules, model_rules, unused_keys
from bert_jax.config.common import COMMON, EVAL_BATCH_SIZE, GRADIENT_ACCUMULATION_STEPS, MODEL
from bert_jax.config.schema import Field, Owner, Section, build, check, to_dict
from bert_jax.config.task_sections import IN_WINDOWS, TASK_RULES, TASK_SECTIONS, TASKS

# All GLUE tasks, one after another.
ALL = "all"
_DROPOUT = MODEL["hidden_dropout_prob"]


def _common(path: str, default: Any, comment: str = "") -> Field:
    section, key = path.split(".")
    field = COMMON[section][key]
    return dataclasses.replace(field, default=default, comment=comment or field.comment)


FINETUNING: Section = {
    **COMMON,
    "dtype": dataclasses.replace(
        COMMON["dtype"],
        default="auto",
        comment=f"{COMMON['dtype'].comment} auto is float32 on a CPU, and bfloat16 elsewhere.",
        choices=("auto", *COMMON["dtype"].choices),
    ),
    "task": Field(
        "mrpc",
        f"Task to learn, one of {', '.join(TASKS)}, or your own. table gives each of your own rows "
        "a label, embedding gives similar texts similar vectors, and rerank scores documents for a "
        "query.",
    ),
    "from_scratch": Field(
        False,
        "Whether to start from random weights, as a baseline that shows the gain from "
        "pre-training. config.init_from then supplies only the shape and the vocabulary.",
    ),
    # The remaining keys of the model come from config.init_from.
    "model": {
        "hidden_dropout_prob": dataclasses.replace(
            _DROPOUT, comment=f"{_DROPOUT.comment} Dropout before the head is always 0.1."
        ),
        "attention_probs_dropout_prob": MODEL["attention_probs_dropout_prob"],
    },
    "data": {
        "input": Field(
            "",
            "Data of the task: its folder (glue_data/MRPC in the standard GLUE download), its "
            'files as "train=FILE,validation=FILE,test=FILE", or one file. '
            "Without a validation split, a tenth of the training examples is held out for it.",
            owner=Owner.NONE,
        ),
        "max_seq_length": Field(
            128,
            "Largest number of tokens in a sequence, including [CLS] and [SEP]. Longer texts are "
            "truncated unless long_texts says otherwise; SQuAD and NER split them into several "
            "sequences.",
            at_least=5,
        ),
        "long_texts": Field(
            "truncate",
            "What happens to a single text that is longer than a sequence, in classification and "
            "regression. windows: it is divided into sequences of nearly equal length, which all "
            "train with its label and whose logits are averaged.",
            choices=("truncate", "windows"),
        ),
        "length_multiple": Field(
            32,
            "Each batch is padded to its longest sequence, rounded up to a multiple of this; with "
            "embeddings to a half, a quarter and so on of data.max_seq_length, but at least this. "
            "The step is compiled once per length. 0 pads all batches to the same length.",
            at_least=0,
        ),
        "bad_rows": Field(
            "refuse",
            "What to do with a row that cannot be used (missing columns, an unknown label, an "
            "empty sentence, an answer that is not in its context): refuse it with its file and "
            "line, or skip it and report how many there are. Rows of a test set are never skipped.",
            choices=("refuse", "skip"),
        ),
    },
    "train": {
        "num_epochs": Field(
            3.0,
            "Number of passes over the training set. The run has examples * epochs / batch_size "
            "steps, rounded down.",
            above=0,
        ),
        "batch_size": Field(32, "Examples in each step, over all devices.", above=0),
        "patience": Field(
            0,
            "Number of evaluations in a row without a better score after which the run ends. 0: it "
            "takes all steps. The schedule is that of all steps.",
            at_least=0,
        ),
        "gradient_accumulation_steps": GRADIENT_ACCUMULATION_STEPS,
    },
    "optimizer": {
        **COMMON["optimizer"],
        "layer_decay": Field(
            1.0,
            "Factor by which the learning rate falls from each block to the block below. The head "
            "and the pooler have the full rate, the embeddings the lowest. 1 uses the same rate "
            "everywhere, as BERT does. It acts on the encoder only; a decoder has the full rate.",
            above=0,
            at_most=1,
        ),
    },
    "schedule": {
        **COMMON["schedule"],
        "peak_learning_rate": _common(
            "schedule.peak_learning_rate",
            3e-5,
            "Learning rate that the warm-up rises toward. The paper tried 5e-5, 4e-5, 3e-5 and "
            "2e-5 on GLUE (section 4.1).",
        ),
        "warmup_steps": _common("schedule.warmup_steps", 0.1),
    },
    "checkpoint": {
        **COMMON["checkpoint"],
        "every_steps": _common("checkpoint.every_steps", 200),
        "keep": _common(
            "checkpoint.keep",
            2,
            "Number of newest checkpoints to keep. With two, a run can continue if the newest is "
            "damaged. The parameters with the best validation score are kept too, in WORKDIR/best.",
        ),
    },
    "eval": {
        # The result is the best score at these steps, so they must not change in a run.
        "every_steps": Field(
            0,
            "Steps between evaluations on the validation split. 0 evaluates after each epoch.",
            at_least=0,
        ),
        "batch_size": EVAL_BATCH_SIZE,
        "predict": Field(
            "",
            "Splits to predict at the end with the best checkpoint: test, or all, which adds the "
            "validation splits. WORKDIR/predictions then holds the predictions in the format of "
            "the task's leaderboard, or of SQuAD's own scripts. If empty, none.",
            choices=("", "test", "all"),
            owner=Owner.NONE,
        ),
    },
    # The grid of `--sweep`: each rate with each batch size, number of epochs and seed. The rates
    # are from section 4.1 of the paper, the batch sizes from appendix A.3.
    "sweep": {
        "learning_rates": Field((5e-5, 4e-5, 3e-5, 2e-5), "Learning rates to try.", above=0),
        "batch_sizes": Field((16, 32), "Batch sizes to try.", above=0),
        "epochs": Field(
            (0.0,),
            "Numbers of epochs to try, such as 2,3,4 (appendix A.3). 0 means train.num_epochs.",
            at_least=0,
        ),
        "seeds": Field((0, 1, 2, 3, 4), "Seeds to try.", at_least=0),
    },
}

# The keys that `filled_in` adds.
FILLED_IN: Section = {
    "model": MODEL,
    "head": Field("sequence_classification", "The head of the task."),
    "labels": Field((), "The labels of the task in the order of the logits."),
    "family": Field("bert", "The family of the weights."),
}


def _section(task: str) -> Section:
    return {**FINETUNING, **({task: TASK_SECTIONS[task]} if task in TASK_SECTIONS else {})}


# The keys that the runs of a sweep take from `config.sweep`.
_SWEPT = {
    "schedule.peak_learning_rate": "learning_rates",
    "train.batch_size": "batch_sizes",
    "seed": "seeds",
}


def check_sweep_flags(config: ConfigDict, given: Iterable[str], is_sweep: bool) -> None:
    """Refuses keys that were given and have no effect with or without --sweep."""
    swept = _SWEPT | ({"train.num_epochs": "epochs"} if any(config.sweep.epochs) else {})
    for key in sorted(given):
        if key.startswith("sweep.") and not is_sweep:
            raise UserError(f"--config.{key} has no effect without --sweep")
        if key in swept and is_sweep:
            values = ",".join(map(str, config.sweep[swept[key]]))
            raise UserError(
                f"--config.{key} has no effect with --sweep, which tries "
                f"config.sweep.{swept[key]}={values}"
            )


def finetune_config(task: str) -> ConfigDict:
    """Returns the defaults for a task (one of `TASKS`, or MODULE:NAME), locked."""
    return build(_section(task), {"task": task}).lock()


def filled_in(
    config: ConfigDict,
    model: Mapping[str, Any],
    head: str,
    labels: tuple[str, ...],
    family: str = "bert",
    dtype: str = "bfloat16",
) -> ConfigDict:
    """Copies a user's config, and completes it with values from the weights and the data.

    Args:
      model: The `config.model` of the weights, except that the user's dropout probabilities
        take precedence.
      dtype: The value that replaces dtype=auto.
    """
    config = config.copy_and_resolve_references()
    with config.unlocked():
        own = {key: config.model[key] for key in FINETUNING["model"]}
        config.model = ConfigDict({**model, **own})
        config.head, config.labels, config.family = head, tuple(labels), family
        if config.dtype == "auto":
            config.dtype = dtype
    return config


def from_dict(values: Mapping[str, Any]) -> ConfigDict:
    """Converts the stored form of a filled-in config back; inverts `to_dict`."""
    section = {**_section(values["task"]), **FILLED_IN}
    config = build(section, values)
    check(config, section)
    check_rules(model_rules(config), config)
    return config


def user_config(filled: ConfigDict) -> ConfigDict:
    """Removes what `filled_in` added: returns the config that the user gave."""
    section, values = _section(filled.task), to_dict(filled)
    own = {key: value for key, value in values.items() if key in section}
    own["model"] = {key: own["model"][key] for key in FINETUNING["model"]}
    return build(section, own)


def validate(config: ConfigDict) -> None:
    """Checks everything that can be checked before any work is done."""
    if "task" not in config:
        raise UserError(
            "the config is for pre-training (python -m bert_jax.main); configs for fine-tuning are "
            "in configs/finetune"
        )
    own = TASK_SECTIONS.keys() & {config.task}
    if config.task in TASKS and TASK_SECTIONS.keys() & config.keys() != own:
        raise UserError(
            f"config.task is {config.task}, but the config file is for another task; take the file "
            "of configs/finetune for it"
        )
    section = _section(config.task)
    check(config, section)
    check_part(config.task, TASKS, "config.task")
    check_rules(_rules(config, section), config)


def _rules(config: ConfigDict, section: Section) -> Iterator[Rule]:
    yield Rule(
        config.init_from,
        ("init_from",),
        "set it to the pre-trained BERT to start from: a work directory, a Hugging Face directory "
        "or a Google checkpoint",
    )
    yield Rule(
        config.data.input,
        ("data.input",),
        "set it to the task's folder (glue_data/MRPC) or its files (train=FILE,validation=FILE)",
    )
    yield from unused_keys(config, section)
    for key, values in config.sweep.items():
        yield Rule(len(set(values)) == len(values), (f"sweep.{key}",), "give each value once")
    yield Rule(
        config.data.long_texts == "truncate"
        or config.task in IN_WINDOWS
        # A task from outside the package may have windows too.
        or config.task not in TASKS,
        ("data.long_texts", "task"),
        "windows are for texts with a label or a number; squad and ner always divide long texts",
    )
    if config.task in TASK_RULES:
        yield from TASK_RULES[config.task](config)
