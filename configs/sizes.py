"""BERT's recipe in many sizes: the paper's study of model size, and Google's miniatures.

Paper: Devlin et al. 2019 (arXiv:1810.04805), table 6; Turc et al. 2019, "Well-Read Students Learn
Better" (arXiv:1908.08962), for the 24 miniatures. All sizes have the recipe of configs/base.py.

| argument | sizes |
|---|---|
| L3_H768_A12, L6_H768_A3, L6_H768_A12, L12_H768_A12, L12_H1024_A16, L24_H1024_A16 | table 6 |
| L2_H128, ..., L12_H768 | miniatures: L of 2, 4, ..., 12; H of 128, 256, 512 or 768; A = H / 64 |
| tiny_L1_H64_A1, tiny_L2_H64_A1, ... | six sizes of configs/tiny.py, for two cores |

    python -m bert_jax.main --config=configs/sizes.py:L6_H768_A12 --workdir=DIR \\
        --config.data.store=STORE

`python -m bert_jax.compare` trains several sizes and compares them; docs/results.md has the command
and a run of the `tiny` sizes.

Hardware: as for configs/base.py; two CPU cores for the `tiny` sizes.
Expected: the paper's table 6, in its order; not reproduced here. The `tiny` sizes: docs/results.md.

| | L3_H768_A12 | L6_H768_A3 | L6_H768_A12 | L12_H768_A12 | L12_H1024_A16 | L24_H1024_A16 |
|---|---|---|---|---|---|---|
| held-out perplexity | 5.84 | 5.24 | 4.68 | 3.99 | 3.54 | 3.23 |
| MNLI | 77.9 | 80.6 | 81.9 | 84.4 | 85.7 | 86.6 |
"""

import re

from bert_jax import load_config
from bert_jax.config import check_argument

TABLE_6 = (
    *("L3_H768_A12", "L6_H768_A3", "L6_H768_A12"),
    *("L12_H768_A12", "L12_H1024_A16", "L24_H1024_A16"),
)
MINIATURES = tuple(
    f"L{depth}_H{width}" for depth in range(2, 13, 2) for width in (128, 256, 512, 768)
)
# As in table 6, sizes differ in layers, heads or width. Four layers are worse than one after
# the steps of configs/tiny.py (docs/results.md).
TINY = (
    *("tiny_L1_H64_A1", "tiny_L2_H64_A1", "tiny_L1_H128_A2"),
    *("tiny_L2_H128_A1", "tiny_L2_H128_A2", "tiny_L2_H192_A3"),
)
SIZES = (*TABLE_6, *MINIATURES, *TINY)


def get_config(arg: str = ""):
    check_argument(arg, SIZES)
    c = load_config("tiny" if arg in TINY else "base")
    depth, width, *heads = map(int, re.findall(r"\d+", arg))
    c.model.num_hidden_layers = depth
    c.model.hidden_size = width
    c.model.num_attention_heads = heads[0] if heads else width // 64
    c.model.intermediate_size = 4 * width
    if arg in TINY:
        # As in tiny.py, for these widths.
        c.model.initializer_range *= (128 / width) ** 0.5
        c.sinusoidal_positions *= (128 / width) ** 0.5
    return c
