"""Fine-tuning's configuration: every key that pre-training's does not have, or not so.

What both have in common is explained in `bert_jax.config`.
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.errors import UserError

# Sections and keys of pre-training's config that mean the same here.
_SHARED = (
    "seed workdir init_from sinusoidal_positions dtype sharding sharding_rules "
    "max_replicated_share scan_layers fused_attention remat optimizer schedule mesh checkpoint "
    "log profile"
).split()
# What "all" of GLUE is: AX has no training data, and is MNLI's to predict.
GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
ALL = "all"
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def finetune_config(task: str) -> ConfigDict:
    """Returns the defaults for a task (one of `bert_jax.tasks.factory.NAMES`), unlocked."""
    shared = config_lib.default_config()
    c = ConfigDict({key: shared[key] for key in _SHARED})

    # What is learned: a task of GLUE ("mrpc"), "squad", "ner", "multiple_choice", or "table":
    # rows of one's own.
    c.task = task
    # config.init_from gives only its shape and vocabulary, and the weights are drawn from the
    # seed: what pre-training is to be compared with.
    c.from_scratch = False

    # The other keys of the model are those of config.init_from.
    c.model = model = ConfigDict()
    # Dropout on embeddings and on both sublayer outputs; what the head reads has the
    # original's 0.1 in any case.
    model.hidden_dropout_prob = 0.1
    # Dropout on the attention probabilities.
    model.attention_probs_dropout_prob = 0.1

    c.data = data = ConfigDict()
    # The task's folder (of the standard GLUE download: glue_data/MRPC), its files as
    # "train=FILE,validation=FILE,test=FILE", or "tfds:glue/mrpc".
    data.input = ""
    # Tokens of a sequence, [CLS] and [SEP] counted; what is longer is cut, or of SQuAD and NER
    # divided over several.
    data.max_seq_length = 128
    # Batches are cut to their longest sequence, rounded up to a multiple of this: padding
    # costs as much as tokens do. Each length is compiled once; 0: one for all.
    data.length_multiple = 32
    # Above 0: the examples of so many steps are sorted by length and divided over these steps, so
    # that a batch has less padding; with 50, SST-2 takes half the time. 0: batches at random, as
    # the original's.
    data.group_by_length = 0
    # A row that cannot be used (missing columns, an unknown label, an empty sentence, an answer
    # that is not in its context): "refuse" ends with its file and line, "skip" counts and
    # reports it. NER's tags that do not follow from those before are then repaired. No row of a
    # test set is ever left out.
    data.bad_rows = "refuse"

    c.train = train = ConfigDict()
    # How often each example is seen; steps = examples * epochs / batch_size, rounded down.
    train.num_epochs = 3.0
    # Examples a step over all devices.
    train.batch_size = 32
    # The batch is cut in this many parts whose gradients are added up.
    train.gradient_accumulation_steps = 1
    # The paper's feature-based approach (section 5.3): the encoder is not trained, and the
    # head reads the states of these layers side by side ([CLS]'s where it is one label a
    # sequence): 0 is the embeddings, 1 the first block, -1 the last; "-4,-3,-2,-1" was the
    # paper's best. Empty: all is fine-tuned. The learning rate wants to be 10 to 100 times
    # higher.
    train.features = ""
    # Of NER and SQuAD the features may go through two BiLSTM layers before the output layer, as
    # in the paper, whose have 768 units; so many are these in each direction. 0: there are none.
    train.bilstm_size = 0

    # By this much the learning rate shrinks from each block to the one below; the head and
    # the pooler have the whole rate, the embeddings the least. 1: all the same (BERT's).
    c.optimizer.layer_decay = 1.0
    # So many blocks, from the first, keep their pre-trained weights, with the embeddings
    # below them; 0: only the embeddings do; -1: all are trained.
    c.optimizer.frozen_layers = -1

    # The paper's grid is 5e-5, 3e-5 and 2e-5; google-research/bert's adds 4e-5.
    c.schedule.peak_learning_rate = 3e-5
    # A share of the steps.
    c.schedule.warmup_steps = 0.1

    # Steps between checkpoints to go on from.
    c.checkpoint.every_steps = 200
    # Two: a damaged newest one leaves another to go on from. The parameters of the best dev
    # score are kept beside them, in WORKDIR/best.
    c.checkpoint.keep = 2

    c.eval = evaluation = ConfigDict()
    # Steps between scores of the validation split; 0: the end of each epoch.
    evaluation.every_steps = 0
    # Examples a step of evaluation, over all devices.
    evaluation.batch_size = 64
    # What the best checkpoint predicts at the end, written to WORKDIR/predictions in the format
    # of the task's leaderboard: "test", the test splits; "all", those and the validation
    # splits, as SQuAD's own scripts want them; empty: nothing.
    evaluation.predict = ""

    c.log.every_steps = 20

    # What `--sweep` tries, each rate with each batch and each seed; the grid of
    # google-research/bert (the paper's, and the rate 4e-5).
    c.sweep = sweep = ConfigDict()
    sweep.learning_rates = (5e-5, 4e-5, 3e-5, 2e-5)
    sweep.batch_sizes = (16, 32)
    sweep.seeds = (0, 1, 2, 3, 4)

    if task in OPTIONS:
        c[task] = OPTIONS[task]()
    return c


def table_options() -> ConfigDict:
    """The section `config.table`."""
    table = ConfigDict()
    # The column of the sentence.
    table.text_column = "text"
    # The column of the second sentence of a pair; empty: there is none.
    table.text_b_column = ""
    # The column of the label, or of the number.
    table.label_column = "label"
    # Label names in the order of the logits (commas between them on the command line);
    # empty: those in the training file, sorted.
    table.labels = ()
    # The label is a number to be predicted.
    table.regression = False
    # What the best checkpoint is judged by: "accuracy"; with two labels also "f1" (of the
    # second), "f1_accuracy" (their mean) or "matthews"; of numbers "pearson_spearman" (their
    # mean), "pearson", "spearman" or "negative_mean_squared_error". Empty: the first of these.
    table.metric = ""
    return table


def squad_options() -> ConfigDict:
    """The section `config.squad`."""
    squad = ConfigDict()
    # "1.1", or "2.0", some of whose questions have no answer (squad.py:2.0).
    squad.version = "1.1"
    # Of a context too long for one sequence, tokens from the start of a window to the next's.
    squad.doc_stride = 128
    # Of a question the first so many tokens are kept.
    squad.max_query_length = 64
    # The best starts and ends of a window that are combined, and the answers that are kept.
    squad.n_best = 20
    # Tokens of an answer, at most.
    squad.max_answer_length = 30
    # SQuAD 2.0: there is no answer if the score of [CLS] is by more than this above that of the
    # best span; the scores name the best one of the validation set.
    squad.null_threshold = 0.0
    return squad


def ner_options() -> ConfigDict:
    """The section `config.ner`."""
    ner = ConfigDict()
    # What the files' tags are in: "iob1", "iob2" or "iobes" (BILOU too); "auto": what those of
    # the training set are in. The labels are IOB2's in any case.
    ner.scheme = "auto"
    # Types of the entities in the order of the labels (commas between them on the command
    # line); empty: those in the training set, sorted.
    ner.types = ()
    return ner


# Tasks that have a section of their own.
OPTIONS = {"table": table_options, "squad": squad_options, "ner": ner_options}


def feature_layers(config: ConfigDict) -> tuple[int, ...]:
    """The layers of `config.train.features`.

    Raises:
      UserError: they are no numbers.
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
    """A copy with all that the weights and the data say.

    Args:
      config: The user's.
      model: BERT's keys of the weights, but for the dropouts.
      head: The task's.
      labels: The task's.
    """
    config = config.copy_and_resolve_references()
    with config.unlocked():
        dropouts = {key: config.model[key] for key in _DROPOUTS}
        config.model = ConfigDict({**model, **dropouts})
        # "sequence_classification", "token_classification", "question_answering" or
        # "multiple_choice".
        config.head = head
        # Names in the order of the logits; empty: regression, or question answering.
        config.labels = tuple(labels)
    return config


def from_dict(values: Mapping[str, Any]) -> ConfigDict:
    """Reads back what `config.to_dict` made of a filled-in config.

    Raises:
      UserError: an unknown key or a value of another type.
    """
    try:
        config = finetune_config(values["task"])
        model = config_lib.default_config().model
        config = filled_in(config, model, values["head"], tuple(values["labels"])).lock()
        # JSON has lists.
        plain = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        for key, value in plain.items():
            if isinstance(value, Mapping):
                plain[key] = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
        config.update(plain)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"not a config of this version of bert_jax: {error}") from error
    return config.unlock()
