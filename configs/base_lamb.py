"""BERT-base with LAMB and large batches; large_lamb.py describes the recipe.

Paper: You et al. 2020 (arXiv:1904.00962). It gives the recipe for BERT-large; using it unchanged
for BERT-base is our choice.

    python -m bert_jax.main --config=configs/base_lamb.py --workdir=/runs/base_lamb \\
        --config.data.store=/data/wikipedia

Hardware: 256 TPU chips. With fewer, raise config.train.gradient_accumulation_steps.
Expected: the results of base.py. Not reproduced with this code.
"""

from bert_jax import load_config
from bert_jax.config import check_argument


def get_config(arg: str = ""):
    check_argument(arg)
    c = load_config("large_lamb")
    c.model = load_config("base").model
    return c
