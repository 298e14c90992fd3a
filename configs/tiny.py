"""BERT-tiny (L2 H128): a first run on a laptop, and a smoke test of a machine.

Paper: Turc et al. 2019, "Well-Read Students Learn Better" (arXiv:1908.08962), for the size. The
recipe for a run of minutes is ours; comments mark where it differs from the paper's.

    python -m bert_jax.main --config=configs/tiny.py --workdir=/tmp/bert_tiny

Hardware: two CPU cores and 2 GB of memory, for two to six minutes.
Expected: a held-out masked-LM loss at least 0.8 nats below the unigram baseline. Reproduced with
this code; README.md shows the figures of a run.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage


def get_config(arg: str = ""):
    check_argument(arg)
    c = load_config("base")
    c.dtype = "float32"
    c.model.vocab_size = 8192
    c.model.hidden_size = 128
    c.model.num_hidden_layers = 2
    c.model.num_attention_heads = 2
    c.model.intermediate_size = 512
    # BERT's 0.02 suits a width of 768. With a width of 128, attention would stay nearly uniform for
    # most of the run.
    c.model.initializer_range = 0.06
    # With BERT's random positions, such a short run learns little more than word frequencies.
    c.sinusoidal_positions = 0.25
    # Such a short run cannot overfit.
    c.model.hidden_dropout_prob = 0.0
    c.model.attention_probs_dropout_prob = 0.0
    c.train.num_steps = 2500
    c.train.batch_size = 32
    c.train.stages = (
        stage(fraction=0.9, max_seq_length=32),
        stage(fraction=0.1, max_seq_length=64),
    )
    # Without bias correction, Adam's first few hundred updates are several times too large. BERT's
    # 10,000 steps of warm-up make up for that; 100 steps do not.
    c.optimizer.bias_correction = True
    c.schedule.peak_learning_rate = 1e-3
    # 100 steps; a shorter run warms up for less.
    c.schedule.warmup_steps = 0.04
    c.checkpoint.every_steps = 500
    c.eval.every_steps = 1000
    c.eval.max_sequences = 1024
    return c
