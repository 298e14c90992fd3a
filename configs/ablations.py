"""BERT's own ablations (Devlin et al. 2019, arXiv:1810.04805, section 5 and appendix C).

    python -m bert_jax.main --config=configs/ablations.py:ltr --workdir=DIR \\
        --config.data.store=STORE

The argument names the ablation, which changes BERT-base (configs/base.py) in one respect. With
`_tiny` after the name, as in `ltr_tiny`, it changes BERT-tiny (configs/tiny.py) instead, which
trains in minutes on two cores with the built-in corpus.

| argument | change | source |
|---|---|---|
| no_nsp | weight 0 for the next-sentence loss; the rows are the same | Table 5 |
| single_segment | rows of one segment, no next-sentence loss | not in the paper |
| ltr | causal attention, next token everywhere, no next-sentence loss | Table 5 |
| mask_A_B_C | percentages of the chosen tokens: become [MASK], are kept, become random | Table 8 |

A_B_C is one of 100_0_0, 80_0_20, 80_20_0, 0_20_80 or 0_0_100.

A causal model is causal in fine-tuning too, and classification reads its last token. Held-out
evaluation always masks 15 %, replaced 80/10/10.

Hardware: as for configs/base.py; two CPU cores for `_tiny`.
Expected: the paper's dev scores; not reproduced here.

| Table 5 | MNLI-m | QNLI | MRPC | SST-2 | SQuAD F1 |
|---|---|---|---|---|---|
| BERT-base | 84.4 | 88.4 | 86.7 | 92.7 | 88.5 |
| no_nsp | 83.9 | 84.9 | 86.5 | 92.6 | 87.9 |
| ltr | 82.1 | 84.3 | 77.5 | 92.1 | 77.8 |

| Table 8: [MASK]/same/random | 80/10/10 | 100/0/0 | 80/0/20 | 80/20/0 | 0/20/80 | 0/0/100 |
|---|---|---|---|---|---|---|
| MNLI | 84.2 | 84.3 | 84.1 | 84.4 | 83.7 | 83.6 |
| NER | 95.4 | 94.9 | 95.2 | 95.2 | 94.8 | 94.9 |
"""

from bert_jax import load_config
from bert_jax.config import check_argument

ABLATIONS = {
    "no_nsp": {"objective.weights": (1.0, 0.0)},
    "single_segment": {
        "objective.terms": ("masked_lm",),
        "objective.weights": (1.0,),
        "data.rows": "segments",
    },
    "ltr": {
        "objective.terms": ("next_token",),
        "objective.weights": (1.0,),
        "data.corruption": "none",
        "model.causal": True,
    },
    "mask_100_0_0": {"data.mask_fractions": (1.0, 0.0, 0.0)},
    "mask_80_0_20": {"data.mask_fractions": (0.8, 0.0, 0.2)},
    "mask_80_20_0": {"data.mask_fractions": (0.8, 0.2, 0.0)},
    "mask_0_20_80": {"data.mask_fractions": (0.0, 0.2, 0.8)},
    "mask_0_0_100": {"data.mask_fractions": (0.0, 0.0, 1.0)},
}
_TINY = "_tiny"


def get_config(arg: str = ""):
    name = arg.removesuffix(_TINY)
    check_argument(arg, [ablation + size for ablation in ABLATIONS for size in ("", _TINY)])
    c = load_config("tiny" if arg.endswith(_TINY) else "base")
    c.update_from_flattened_dict(ABLATIONS[name])
    return c
