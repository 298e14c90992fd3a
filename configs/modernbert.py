"""ModernBERT and Ettin: `modernbert.py:base`, `:large`, `:ettin_17m` to `:ettin_1b` or `:tiny`.

Paper: Warner et al. 2024, "Smarter, Better, Faster, Longer" (arXiv:2412.13663); values are from
yamls/modernbert in AnswerDotAI/ModernBERT. Ettin (Weller et al. 2025, arXiv:2507.11412) trains the
same encoder in six sizes. Every third layer sees the whole row, the others 64 tokens to either
side. The objective is masked LM alone; a coin for each token chooses 30 % of them, in Ettin no
special ones. All phases are stages of one run: the rotary bases rise to 160,000 with the length, in
ModernBERT only that of global layers. Rows of ModernBERT are whole documents, packed; those of
Ettin are segments of documents.

    python -m bert_jax.main --config=configs/modernbert.py:tiny --workdir=/tmp/modernbert_tiny
    python -m bert_jax.convert --model=/tmp/modernbert_tiny --output=DIR --to=huggingface

configs/continue.py continues a released model.

| argument | model | feed-forward | heads | steps at 1,024 tokens, then 8,192 or 7,999 | peak rate |
|---|---|---|---|---|---|
| base | L22 H768 | 1,152 | 12 | 364k x 4,608, 64k x 576 | 8e-4 |
| large | L28 H1024 | 2,624 | 16 | 341k x 4,928, 59k x 616 | 5e-4 |
| ettin_17m | L7 H256 | 384 | 4 | 360k x 4,608, 8k x 4,608 | 3e-3 |
| ettin_32m | L10 H384 | 576 | 6 | same | 3e-3 |
| ettin_68m | L19 H512 | 768 | 8 | same | 3e-3 |
| ettin_150m | as base | | | same | 8e-4 |
| ettin_400m | as large | | | same | 5e-4 |
| ettin_1b | L28 H1792 | 3,840 | 28 | same | 5e-4 |
| tiny | L4 H128, 4,096 tokens, windows of 16 | 192 | 2 | 2,000 x 16 of 64 tokens | 2e-3 |

The differences from the original are: batches do not grow; a row has its own place in memory, where
the original joins all rows of a device into one; large starts at random, not from base; its last
phase, which the authors do not publish as a file, follows base's. tiny has AdamW, clipping and a
linear decay.

Hardware: a TPU slice; two CPU cores and 2 GB of memory for tiny.
Expected: GLUE 88.4 (base) and 90.4 (large) in the paper; not reproduced with this code. tiny: a
held-out masked-LM loss of 3.95 nats (unigram frequencies: 6.61), after five minutes of processor
time on a busy machine; one seed.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage

# Layers, width, width of the feed-forward layer, heads; peak rate, its warm-up in tokens, weight
# decay, and sequences in a batch of 1,024 tokens each.
SIZES = {
    "base": (22, 768, 1152, 12, 8e-4, 3e9, 0.0125, 4608),
    "large": (28, 1024, 2624, 16, 5e-4, 2e9, 0.02, 4928),
    "ettin_17m": (7, 256, 384, 4, 3e-3, 4e9, 3e-4, 4608),
    "ettin_32m": (10, 384, 576, 6, 3e-3, 4e9, 3e-4, 4608),
    "ettin_68m": (19, 512, 768, 8, 3e-3, 3e9, 3e-4, 4608),
    "ettin_150m": (22, 768, 1152, 12, 8e-4, 3e9, 0.0125, 4608),
    "ettin_400m": (28, 1024, 2624, 16, 5e-4, 2e9, 0.02, 4608),
    "ettin_1b": (28, 1792, 3840, 28, 5e-4, 2e9, 0.02, 4608),
    "tiny": (4, 128, 192, 2, 2e-3, 0, 0.0125, 16),
}
DECAY = {"shape": "one_minus_sqrt", "end_factor": 0.001}
# The rotary bases before the rows get longer.
SHORT = {"rope_theta": 10_000.0, "local_rope_theta": 10_000.0}
# Each phase: length, tokens, and the keys of its stage. Peaks of Ettin are fractions of its own.
PHASES = (
    (1024, 1.719e12, SHORT),
    (8192, 250e9, {"peak_learning_rate": 3e-4, "shape": "constant", "weight_decay": 0.0333}),
    (8192, 50e9, {"peak_learning_rate": 3e-4, "weight_decay": 0.0333, **DECAY}),
)
LARGE_PHASES = (
    (1024, 0.9e12, SHORT),
    (1024, 0.819e12, {"peak_learning_rate": 5e-5, "shape": "constant", **SHORT}),
    (8192, 250e9, {"peak_learning_rate": 5e-5, "shape": "constant"}),
    (8192, 50e9, {"peak_learning_rate": 5e-5, **DECAY}),
)
ETTIN_PHASES = (
    (1024, 1.7e12, SHORT),
    (7999, 250e9, {"peak_learning_rate": 1.0, "shape": "one_minus_sqrt", "end_factor": 0.5}),
    (
        7999,
        50e9,
        {
            "peak_learning_rate": 0.5,
            "shape": "one_minus_sqrt",
            "end_factor": 0.04,
            "masked_lm_prob": 0.15,
        },
    ),
)


def get_config(arg: str = "base"):
    check_argument(arg, SIZES)
    c = load_config("tiny" if arg == "tiny" else "base")
    layers, width, inner, heads, peak, warmup_tokens, decay, batch_size = SIZES[arg]
    c.family = "modernbert"
    c.objective.terms = ("masked_lm",)
    c.objective.weights = (1.0,)
    is_ettin = arg.startswith("ettin")
    if is_ettin:
        c.data.rows = "segments"
        c.data.corruption = "ettin"
    else:
        c.data.rows = "fitted_documents"
        c.data.max_pairs_per_row = 64
        c.data.corruption = "modernbert"
    c.data.masked_lm_prob = 0.3
    c.data.tokenizer = "byte_bpe"
    c.data.special_tokens = "modernbert"
    c.data.lowercase = False
    c.data.short_seq_prob = 0.0

    c.model.num_hidden_layers = layers
    c.model.hidden_size = width
    c.model.intermediate_size = inner
    c.model.num_attention_heads = heads
    c.model.norm = "pre_and_final"
    c.model.biases = False
    c.model.gated = True
    c.model.type_vocab_size = 0
    c.model.rope_theta = 160_000.0
    c.model.local_rope_theta = 160_000.0 if is_ettin else 10_000.0
    c.model.local_attention = 128
    c.model.global_every = 3
    c.model.classifier_pooling = "mean"
    c.model.output_init_by_depth = True
    c.model.layer_norm_eps = 1e-5
    c.model.hidden_dropout_prob = 0.0
    c.model.attention_probs_dropout_prob = 0.0
    c.model.attention_output_dropout_prob = 0.1

    c.optimizer.b2 = 0.98
    c.optimizer.weight_decay = decay
    c.optimizer.bias_correction = True
    c.optimizer.max_grad_norm = 0.0
    c.schedule.peak_learning_rate = peak
    if arg == "tiny":
        c.data.max_pairs_per_row = 4
        c.schedule.shape = "linear_after_warmup"
        c.sinusoidal_positions = 0.0
        c.model.vocab_size = 4096
        c.model.rope_theta = 1000.0
        c.model.local_rope_theta = 100.0
        c.model.local_attention = 16
        c.model.attention_output_dropout_prob = 0.0
        c.optimizer.max_grad_norm = 1.0
        c.train.num_steps = 2000
        c.schedule.warmup_steps = 0.05
        c.train.batch_size = batch_size
        c.train.stages = (stage(fraction=1.0, max_seq_length=64),)
        return c

    c.model.vocab_size = 50368
    c.model.max_position_embeddings = 8192
    c.train.batch_size = batch_size
    c.schedule.warmup_steps = float(round(warmup_tokens / (batch_size * 1024)))
    c.schedule.shape = "constant"
    c.optimizer.name = "stable_adamw"
    phases = ETTIN_PHASES if is_ettin else LARGE_PHASES if arg == "large" else PHASES
    # A batch of ModernBERT has as many tokens in every phase.
    batches = [batch_size // 8 if length == 8192 else batch_size for length, *_ in phases]
    steps = [phase[1] / (b * phase[0]) for phase, b in zip(phases, batches, strict=True)]
    c.train.num_steps = round(sum(steps))
    stages = []
    for (length, _, keys), b, n in zip(phases, batches, steps, strict=True):
        if "peak_learning_rate" in keys and is_ettin:
            keys = keys | {"peak_learning_rate": peak * keys["peak_learning_rate"]}
        stages.append(stage(fraction=n / sum(steps), max_seq_length=length, batch_size=b, **keys))
    c.train.stages = tuple(stages)
    return c
