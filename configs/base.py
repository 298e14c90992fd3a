"""BERT-base (L12 H768 A12, 110 M parameters), as the paper trained it.

Paper: Devlin et al. 2019 (arXiv:1810.04805), sections 3 and A.2. The run has 1M steps of 256
sequences: 90 % of the steps with 128 tokens, 10 % with 512. The optimizer is Adam with a peak rate
of 1e-4, 10k steps of warm-up and linear decay. The corpus is Wikipedia and BooksCorpus, 3.3 billion
words.

    python -m bert_jax.main --config=configs/base.py --workdir=/runs/base \\
        --config.data.store=/data/wikipedia

Hardware: 16 TPU chips (the paper used 4 Cloud TPUs, which have 16 chips, for 4 days), or one GPU
for short runs.
Expected: held-out masked-LM perplexity 3.99 (paper, table 6), GLUE test average 79.6, SQuAD v1.1
dev F1 88.5. Not reproduced with this code.
"""

from bert_jax.config import check_argument, default_config


def get_config(arg: str = ""):
    check_argument(arg)
    # The defaults are BERT-base's.
    c = default_config()
    return c
