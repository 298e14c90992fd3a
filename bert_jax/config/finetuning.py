"""The config keys of fine-tuning: their defaults, meanings and ranges.

Keys that mean the same in pre-training are in `bert_jax.config.common`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config.common import (
    ATTENTION_DROPOUT,
    COMMON,
    EVAL_BATCH_SIZE,
    GRADIENT_ACCUMULATION_STEPS,
    HIDDEN_DROPOUT,
    check_mesh,
)
from bert_jax.config.pretraining import MODEL
from bert_jax.config.schema import Field, Section, build, check
from bert_jax.errors import UserError

# The GLUE tasks with training data. AX has none: MNLI's model predicts it.
GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
TASKS = (*GLUE_TASKS, "ax", "table", "squad", "ner", "multiple_choice")
# All GLUE tasks, one after another.
ALL = "all"
# Tasks with an output for each token.
_TOKEN_TASKS = ("ner", "squad")


def _common(path: str, default: Any, comment: str = "") -> Field:
    """Returns a field of COMMON with another default, and perhaps another comment."""
    section, key = path.split(".")
    field = COMMON[section][key]
    return dataclasses.replace(field, default=default, comment=comment or field.comment)


# The sections of single tasks, such as `config.squad`.
TASK_SECTIONS: dict[str, Section] = {
    "table": {
        "text_column": Field("text", "Column of the sentence."),
        "text_b_column": Field(
            "", "Column of the second sentence of a pair. If empty, rows are single sentences."
        ),
        "label_column": Field("label", "Column of the label, or of the number."),
        "labels": Field(
            (),
            "Names of the labels in the order of the logits (separated by commas on the command "
            "line). If empty, those of the training file, sorted.",
        ),
        "regression": Field(False, "Whether the label is a number to predict."),
        "metric": Field(
            "",
            "Metric that decides which checkpoint is best. For labels: accuracy; with two labels "
            "also f1 (of the second), f1_accuracy (their mean) and matthews. For numbers: "
            "pearson_spearman (their mean), pearson, spearman and negative_mean_squared_error. "
            "If empty, the first of these.",
        ),
    },
    "squad": {
        "version": Field(
            "1.1",
            "Version of SQuAD. In 2.0 some questions have no answer (squad.py:2.0).",
            choices=("1.1", "2.0"),
        ),
        "doc_stride": Field(
            128,
            "Tokens from the start of one window to the start of the next, in a context too long "
            "for one sequence.",
            above=0,
        ),
        "max_query_length": Field(
            64, "Number of tokens of a question that are kept, from its start.", above=0
        ),
        "n_best": Field(
            20,
            "Number of best starts and best ends of a window that are combined, and of answers "
            "that are kept.",
            above=0,
        ),
        "max_answer_length": Field(30, "Largest number of tokens in an answer.", above=0),
        "null_threshold": Field(
            0.0,
            "SQuAD 2.0 only. The answer is empty if the score of [CLS] exceeds that of the best "
            "span by more than this. The results name the best value on the validation set.",
        ),
    },
    "ner": {
        "scheme": Field(
            "auto",
            "Scheme of the tags in the files; iobes includes BILOU. auto takes the one that fits "
            "the training set. The labels are those of IOB2 in any case.",
            choices=("auto", "iob1", "iob2", "iobes"),
        ),
        "types": Field(
            (),
            "Types of the entities in the order of the labels (separated by commas on the command "
            "line). If empty, those of the training set, sorted.",
        ),
    },
}

FINETUNING: Section = {
    **COMMON,
    "task": Field(
        "mrpc",
        "Task to learn: a GLUE task, squad, ner, multiple_choice, or table, which reads your own "
        "rows.",
        choices=TASKS,
    ),
    "from_scratch": Field(
        False,
        "Whether config.init_from supplies only the shape and the vocabulary, and the weights are "
        "drawn from the seed. This is the baseline to compare pre-training with.",
    ),
    # The remaining keys of the model come from config.init_from.
    "model": {
        "hidden_dropout_prob": dataclasses.replace(
            HIDDEN_DROPOUT,
            comment=f"{HIDDEN_DROPOUT.comment} The head's input always has the original's 0.1.",
        ),
        "attention_probs_dropout_prob": ATTENTION_DROPOUT,
    },
    "data": {
        "input": Field(
            "",
            "Data of the task: its folder (glue_data/MRPC in the standard GLUE download), its "
            'files as "train=FILE,validation=FILE,test=FILE", or "tfds:glue/mrpc".',
        ),
        "max_seq_length": Field(
            128,
            "Largest number of tokens in a sequence, including [CLS] and [SEP]. Longer texts are "
            "truncated; SQuAD and NER divide them over several sequences.",
            at_least=5,
        ),
        "length_multiple": Field(
            32,
            "Batches are cut to their longest sequence, rounded up to a multiple of this, because "
            "padding costs as much as tokens do. Each length is compiled once. 0 uses one length "
            "for all batches.",
            at_least=0,
        ),
        "group_by_length": Field(
            0,
            "Number of steps whose examples are sorted by length together, so that batches have "
            "less padding; with 50, SST-2 takes half the time. 0 draws batches at random, as the "
            "original does.",
            at_least=0,
        ),
        "bad_rows": Field(
            "refuse",
            "What happens to a row that cannot be used (missing columns, an unknown label, an "
            "empty sentence, an answer that is not in its context). refuse ends the run and names "
            "file and line; skip counts and reports it, and repairs NER tags that do not follow "
            "from those before. Rows of a test set are never left out.",
            choices=("refuse", "skip"),
        ),
    },
    "train": {
        "num_epochs": Field(
            3.0,
            "Number of times that each example is seen. The run has examples * epochs / batch_size "
            "steps, rounded down.",
            above=0,
        ),
        "batch_size": Field(32, "Examples in each step, over all devices.", above=0),
        "gradient_accumulation_steps": GRADIENT_ACCUMULATION_STEPS,
        "features": Field(
            "",
            "Layers whose states the head reads side by side while the encoder is frozen: the "
            'feature-based approach of the paper (section 5.3), whose best was "-4,-3,-2,-1". 0 '
            "is the embeddings, 1 the first block and -1 the last. Tasks with one label per "
            "sequence read the states of [CLS]. The learning rate should be 10 to 100 times "
            "higher. If empty, everything is fine-tuned.",
        ),
        "bilstm_size": Field(
            0,
            "Units in each direction of two BiLSTM layers between features and output layer, for "
            "ner and squad. The paper's have 768. 0 means no BiLSTM.",
            at_least=0,
        ),
    },
    "optimizer": {
        **COMMON["optimizer"],
        "layer_decay": Field(
            1.0,
            "Factor of the learning rate from each block to the one below. The head and the pooler "
            "have the full rate and the embeddings the lowest. 1 gives all the same rate, as BERT "
            "does.",
            above=0,
            at_most=1,
        ),
        "frozen_layers": Field(
            -1,
            "Number of blocks, from the first, that keep their pre-trained weights, together with "
            "the embeddings. 0 freezes the embeddings only; -1 trains everything.",
            at_least=-1,
        ),
    },
    "schedule": {
        **COMMON["schedule"],
        "peak_learning_rate": _common(
            "schedule.peak_learning_rate",
            3e-5,
            "Learning rate that the warm-up rises towards. The paper tried 5e-5, 3e-5 and 2e-5; "
            "google-research/bert adds 4e-5.",
        ),
        "warmup_steps": _common("schedule.warmup_steps", 0.1),
    },
    "checkpoint": {
        **COMMON["checkpoint"],
        "every_steps": _common("checkpoint.every_steps", 200),
        "keep": _common(
            "checkpoint.keep",
            2,
            "Number of newest checkpoints to keep; with two, a damaged newest one leaves another. "
            "The parameters with the best validation score are kept as well, in WORKDIR/best.",
        ),
    },
    "log": {"every_steps": _common("log.every_steps", 20)},
    "eval": {
        "every_steps": Field(
            0,
            "Steps between evaluations on the validation split. 0 evaluates after each epoch.",
            at_least=0,
        ),
        "batch_size": EVAL_BATCH_SIZE,
        "predict": Field(
            "",
            "Splits that the best checkpoint predicts at the end, into WORKDIR/predictions, in the "
            "format of the task's leaderboard: test, or all, which adds the validation splits (as "
            "SQuAD's own scripts expect). If empty, none.",
            choices=("", "test", "all"),
        ),
    },
    # The grid of `--sweep`: each rate with each batch size and each seed. The defaults are those
    # of google-research/bert.
    "sweep": {
        "learning_rates": Field((5e-5, 4e-5, 3e-5, 2e-5), "Learning rates to try.", above=0),
        "batch_sizes": Field((16, 32), "Batch sizes to try.", above=0),
        "seeds": Field((0, 1, 2, 3, 4), "Seeds to try.", at_least=0, below=2**63),
    },
}


def _section(task: str) -> Section:
    return {**FINETUNING, **({task: TASK_SECTIONS[task]} if task in TASK_SECTIONS else {})}


def finetune_config(task: str) -> ConfigDict:
    """Returns the defaults for a task (one of `TASKS`), unlocked."""
    return build(_section(task), {"task": task})


def feature_layers(config: ConfigDict) -> tuple[int, ...]:
    """Returns the layers of `config.train.features`.

    Raises:
      UserError: They are not numbers.
    """
    texts = config.train.features.split(",") if config.train.features.strip() else []
    try:
        return tuple(int(text) for text in texts)
    except ValueError:
        raise UserError(
            f"config.train.features is {config.train.features!r}; it must be numbers of layers "
            "with commas between them, such as -4,-3,-2,-1"
        ) from None


def filled_in(
    config: ConfigDict, model: Mapping[str, Any], head: str, labels: tuple[str, ...]
) -> ConfigDict:
    """Returns a copy of a user's config, completed by what the weights and the data define.

    Args:
      config: The user's config.
      model: The model keys of the weights. The user's dropout probabilities replace theirs.
      head: The head of the task.
      labels: The labels of the task in the order of the logits. Empty for regression and
        question answering.
    """
    config = config.copy_and_resolve_references()
    with config.unlocked():
        own = {key: config.model[key] for key in FINETUNING["model"]}
        config.model = ConfigDict({**model, **own})
        config.head, config.labels = head, tuple(labels)
    return config


def from_dict(values: Mapping[str, Any]) -> ConfigDict:
    """Returns the filled-in config that `to_dict` turned into `values`.

    Raises:
      UserError: There is an unknown key, or a value of the wrong type.
    """
    section = {
        **_section(values["task"]),
        "model": MODEL,
        "head": Field("", "The head of the task; see `filled_in`."),
        "labels": Field((), "The labels of the task; see `filled_in`."),
    }
    try:
        return build(section, values)
    except UserError as error:
        raise UserError(f"not a config of this version of bert_jax: {error}") from error


def validate(config: ConfigDict) -> None:
    """Checks everything that can be known before any work is done.

    Raises:
      UserError: The message names the key, its value and what would be right.
    """
    if "task" not in config:
        raise UserError(
            "the config is one of pre-training (python -m bert_jax.main); those of fine-tuning are "
            "in configs/finetune"
        )
    check(config, _section(config.task))
    for key, values in config.sweep.items():
        if not values or len(set(values)) < len(values):
            raise UserError(
                f"config.sweep.{key} is {values!r}; it must have at least one value, and each once"
            )
    if not config.init_from:
        raise UserError(
            "config.init_from is missing: the pre-trained BERT to start from, a work directory, a "
            "Hugging Face directory or a Google checkpoint"
        )
    if not config.data.input:
        raise UserError(
            "config.data.input is missing: the task's folder (glue_data/MRPC), its files "
            "(train=FILE,validation=FILE) or tfds:NAME"
        )
    _check_features(config)
    check_mesh(config.mesh)


def _check_features(config: ConfigDict) -> None:
    """Refuses keys that have no effect with features, or without them."""
    layers, size = feature_layers(config), config.train.bilstm_size
    for key in ("frozen_layers", "layer_decay"):
        value, default = config.optimizer[key], FINETUNING["optimizer"][key].default
        if layers and value != default:
            raise UserError(
                f"config.optimizer.{key} is {value:g}, but has no effect with "
                f"config.train.features, where the encoder is not trained; leave it at {default:g}"
            )
    if size and config.task not in _TOKEN_TASKS:
        raise UserError(
            f"config.train.bilstm_size is {size}, but config.task is {config.task}; it is for "
            f"{' and '.join(_TOKEN_TASKS)}, where every token's state is read"
        )
