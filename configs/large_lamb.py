"""BERT-large with LAMB and large batches: the 76-minute recipe.

Paper: You et al. 2020, "Large Batch Optimization for Deep Learning" (arXiv:1904.00962), section 4,
mixed-batch training: 7,038 steps of 64k sequences with 128 tokens, then 1,563 steps of 32k
sequences with 512 tokens. Each stage has its own warm-up and decay. The learning rates, warm-ups
and the power of the decay come from NVIDIA's DeepLearningExamples.

    python -m bert_jax.main --config=configs/large_lamb.py --workdir=/runs/large_lamb \\
        --config.data.store=/data/wikipedia

Hardware: 1,024 TPU chips (the paper used a TPU v3 pod for 76 minutes). With fewer, raise
config.train.gradient_accumulation_steps.
Expected: SQuAD v1.1 dev F1 90.6 (paper, table 1). Not reproduced with this code.
"""

from bert_jax import load_config
from bert_jax.config import check_argument, stage


def get_config(arg: str = ""):
    check_argument(arg)
    c = load_config("base")
    c.model.num_hidden_layers = 24
    c.model.hidden_size = 1024
    c.model.num_attention_heads = 16
    c.model.intermediate_size = 4096
    c.optimizer.name = "lamb"
    # Algorithm 2 of the paper divides moments by 1 - b^t; BERT's Adam does not.
    c.optimizer.bias_correction = True
    c.schedule.decay_power = 0.5
    c.train.num_steps = 7038 + 1563
    c.train.stages = (
        stage(
            fraction=7038 / c.train.num_steps,
            max_seq_length=128,
            max_predictions_per_seq=20,
            batch_size=65536,
            peak_learning_rate=6e-3,
            warmup_steps=0.2843,
        ),
        stage(
            fraction=1563 / c.train.num_steps,
            max_seq_length=512,
            max_predictions_per_seq=80,
            batch_size=32768,
            peak_learning_rate=4e-3,
            warmup_steps=0.128,
        ),
    )
    c.checkpoint.every_steps = 200
    c.eval.every_steps = 500
    return c
