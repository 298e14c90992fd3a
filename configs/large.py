"""BERT-large (L24 H1024 A16, 336 M parameters with both heads), as the paper trained it.

Paper: Devlin et al. 2019 (arXiv:1810.04805), sections 3 and A.2; base.py lists the recipe.

    python -m bert_jax.main --config=configs/large.py --workdir=/runs/large \\
        --config.data.store=/data/wikipedia

Hardware: 64 TPU chips (the paper used 16 Cloud TPUs for 4 days).
Expected: held-out masked-LM perplexity 3.23 (paper, table 6), GLUE test average 82.1, SQuAD v1.1
dev F1 90.9. Not reproduced with this code.
"""

from bert_jax import load_config
from bert_jax.config import check_argument


def get_config(arg: str = ""):
    check_argument(arg)
    c = load_config("base")
    c.model.num_hidden_layers = 24
    c.model.hidden_size = 1024
    c.model.num_attention_heads = 16
    c.model.intermediate_size = 4096
    return c
