"""The encoders of GTE: `gte.py:multilingual_base`, `:en_base`, `:en_large` or `:tiny`.

Paper: Zhang et al. 2024, "mGTE" (arXiv:2407.19669); values are from the model cards of
gte-multilingual-mlm-base, gte-en-mlm-base and gte-en-mlm-large. It is a BERT with rotary positions
and GeGLU. A coin for each token chooses 30 % of them. The rows get longer in stages, and the rotary
base rises with them.

    python -m bert_jax.main --config=configs/gte.py:tiny --workdir=/tmp/gte_tiny
    python -m bert_jax.convert --model=/tmp/gte_tiny --output=DIR --to=huggingface

What the authors do not publish is ours: warm-up and decay of each stage, and the 80/10/10 of the
masks. The first stage of en_base, with rows of 512 tokens, has no published numbers and is left
out. The dropout after the gate is left out too.

multilingual_base needs the vocabulary of XLM-R: --config.data.vocab=DIR, a directory of its
tokenizer. Its corpus are C4, mC4, SkyPile, Wikipedia and CulturaX; the English models have C4.

Hardware: a TPU slice; two CPU cores and 2 GB of memory for tiny.
Expected: the scores on GLUE on the model cards, not reproduced with this code. tiny: a
held-out masked-LM loss of 4.03 nats (unigram frequencies: 6.50); one seed.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage

# Of each stage: length, peak rate, batch, steps, rotary base.
STAGES = {
    "multilingual_base": (
        (2048, 2e-4, 8192, 250_000, 10_000.0),
        (8192, 5e-5, 2048, 30_000, 160_000.0),
    ),
    "en_base": ((2048, 5e-4, 4096, 70_000, 10_000.0), (8192, 5e-5, 1024, 20_000, 500_000.0)),
    "en_large": (
        (512, 2e-4, 4096, 300_000, 10_000.0),
        (2048, 5e-5, 4096, 30_000, 10_000.0),
        (8192, 5e-5, 1024, 30_000, 160_000.0),
    ),
}
SIZES = (*STAGES, "tiny")


def get_config(arg: str = "en_base"):
    check_argument(arg, SIZES)
    c = load_config("tiny" if arg == "tiny" else "base")
    c.family = "gte"
    c.objective.terms = ("masked_lm",)
    c.objective.weights = (1.0,)
    c.data.rows = "segments"
    c.data.short_seq_prob = 0.0
    c.data.corruption = "ettin"
    c.data.masked_lm_prob = 0.3
    c.model.gated = True
    c.model.biasless = ("inner",)
    c.model.type_vocab_size = 0
    c.model.attention_probs_dropout_prob = 0.0
    c.optimizer.bias_correction = True
    if arg == "tiny":
        c.sinusoidal_positions = 0.0
        c.model.vocab_size = 4096
        c.model.num_hidden_layers = 4
        c.model.intermediate_size = 192
        c.model.rope_theta = 1000.0
        c.schedule.peak_learning_rate = 2e-3
        c.schedule.warmup_steps = 0.05
        c.schedule.shape = "linear_after_warmup"
        c.train.num_steps = 2000
        c.train.batch_size = 16
        c.train.stages = (stage(fraction=1.0, max_seq_length=64),)
        return c
    if arg == "multilingual_base":
        c.model.vocab_size = 250_002
        c.model.type_vocab_size = 1
        c.data.tokenizer = "sentencepiece"
        c.data.special_tokens = "roberta"
        c.data.lowercase = False
    elif arg == "en_large":
        c.model.type_vocab_size = 2
        c.model.num_hidden_layers = 24
        c.model.hidden_size = 1024
        c.model.num_attention_heads = 16
        c.model.intermediate_size = 4096
    stages = STAGES[arg]
    c.model.rope_theta = stages[-1][-1]
    c.model.max_position_embeddings = 8192
    c.train.batch_size = stages[0][2]
    c.train.num_steps = sum(steps for _, _, _, steps, _ in stages)
    c.schedule.peak_learning_rate = stages[0][1]
    c.schedule.warmup_steps = 0.0
    c.train.stages = tuple(
        stage(
            fraction=steps / c.train.num_steps,
            max_seq_length=length,
            batch_size=batch_size,
            peak_learning_rate=peak,
            shape="linear",
            warmup_steps=0.06,
            rope_theta=theta,
        )
        for length, peak, batch_size, steps, theta in stages
    )
    return c
