"""BERT-medium (L8 H512): BERT's recipe with a small encoder.

Paper: Turc et al. 2019, "Well-Read Students Learn Better" (arXiv:1908.08962), for the size;
Devlin et al. 2019 (arXiv:1810.04805) for batch size, learning rate and stages.

    python -m bert_jax.main --config=configs/medium.py --workdir=DIR \\
        --config.data.input='TEXT/*.txt'

Hardware: one GPU or one TPU chip; a laptop for short runs
(--config.train.num_steps=20000 --config.dtype=float32).
Expected: GLUE test average 73.5, which the README of google-research/bert reports for its own
model of this size. Not reproduced with this code.
"""

from bert_jax import load_config
from bert_jax.config import check_argument


def get_config(arg: str = ""):
    check_argument(arg)
    c = load_config("base")
    c.model.num_hidden_layers = 8
    c.model.hidden_size = 512
    c.model.num_attention_heads = 8
    c.model.intermediate_size = 2048
    return c
