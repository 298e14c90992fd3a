"""The families at BERT-mini's size with equal FLOPs: `comparison.py:NAME`.

NAME is bert, roberta, spanbert, albert, electra or distilbert. All runs have the same number of
analytic FLOPs (1e14), the optimizer and schedule of mini_laptop.py, and one WordPiece vocabulary of
8,192 tokens. Rows, masks, terms and model options are as in the family's `base`.

    python -m bert_jax.compare --config=configs/studies.py:families --workdir=DIR

trains and compares them (docs/results.md). One of them alone:

    python -m bert_jax.main --config=configs/comparison.py:electra --workdir=DIR \\
        --config.data.store=STORE

`distilbert` needs config.objective.teacher, the work directory of `bert`. Its
FLOPs include the teacher's forward pass, and not the teacher's training.

Hardware: two CPU cores and 3 GB of memory, for 8 to 20 minutes (25 to 35 minutes of CPU time).
Expected: a held-out masked-LM loss of 4.8 (roberta), 4.9 (bert), 5.0 (distilbert), 6.0 (albert),
6.2 (spanbert) and 6.4 (electra's generator); unigram frequencies: 6.48 to 6.60. Two runs with
different numbers of threads differ by up to 0.05 (bert: 0.1), because rounding differs. Reproduced
with this code.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage

# Steps that take 1e14 FLOPs.
NUM_STEPS = {
    "bert": 2251,
    "roberta": 2251,
    "spanbert": 2044,
    "albert": 2339,
    "electra": 2077,
    "distilbert": 1367,
}


def get_config(arg: str = "bert"):
    check_argument(arg, NUM_STEPS)
    mini = load_config("mini_laptop")
    c = load_config("base" if arg == "bert" else f"{arg}:base")
    for section in ("optimizer", "schedule", "checkpoint", "eval", "log"):
        c[section] = mini[section]
    c.dtype = mini.dtype
    for key in ("hidden_size", "num_attention_heads", "intermediate_size"):
        c.model[key] = mini.model[key]
    c.model.num_hidden_layers = 2 if arg == "distilbert" else 4
    c.model.vocab_size = 8192
    c.model.hidden_dropout_prob = 0.0
    c.model.attention_probs_dropout_prob = 0.0
    # With BERT's initialization, such a short run would end before the model learns attention
    # (docs/pretraining.md).
    c.model.initializer_range = 0.04
    c.sinusoidal_positions = 0.17
    c.data.tokenizer = "wordpiece"
    c.data.special_tokens = "bert"
    c.data.sentencepiece_rules = "plain"
    c.data.lowercase = True
    c.train.num_steps = NUM_STEPS[arg]
    c.train.batch_size = 32
    c.train.stages = (stage(fraction=1.0, max_seq_length=64),)
    c.schedule.warmup_steps = 200.0
    if arg == "electra":
        c.model.embedding_size = c.model.hidden_size
        # A third of the width would not be a multiple of 64.
        c.model.generator_size = 1 / 4
    if arg == "distilbert":
        c.objective.teacher_layers = "0,2"
    return c
