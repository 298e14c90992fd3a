"""Records which tokens transformers' distillation project chooses, by their frequency.

    python -m benchmarks.golden.distilbert_masks .../distillation/distiller.py

tests/batches/corruption/test_distilbert.py compares bert_jax with these shares. The original code
is not changed, but only the two functions that make batches are executed.
"""

import ast
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from benchmarks.golden.recipe import save_json

VOCABULARY, LENGTH, ROWS, DRAWS = 505, 64, 64, 300
PAD, UNK, CLS, SEP, MASK = range(5)
# The first ids of classes of tokens, from the most to the least frequent.
CLASSES = (5, 15, 55, 155, 305, VOCABULARY)


def token_counts() -> np.ndarray:
    """Returns counts that follow Zipf's law."""
    counts_V = np.zeros(VOCABULARY, np.int64)
    counts_V[5:] = 100_000 / np.arange(1, VOCABULARY - 4)
    # A token that is not in the corpus counts as if it occurred once.
    counts_V[-1] = 0
    return counts_V


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Returns ids and lengths of padded rows of different lengths; some tokens are [UNK]."""
    rng = np.random.RandomState(0)
    weight_V = np.maximum(token_counts(), [UNK == i for i in range(VOCABULARY)]) + 20.0
    weight_V[[PAD, CLS, SEP, MASK]] = 0
    ids_BxL = rng.choice(VOCABULARY, (ROWS, LENGTH), p=weight_V / weight_V.sum()).astype(np.int32)
    lengths_B = rng.randint(12, LENGTH + 1, ROWS)
    at_L = np.arange(LENGTH)
    ids_BxL[:, 0] = CLS
    ids_BxL[at_L == lengths_B[:, None] - 1] = SEP
    ids_BxL[at_L >= lengths_B[:, None]] = PAD
    return ids_BxL, lengths_B


def statistics(draws: list[tuple[np.ndarray, np.ndarray]]) -> dict:
    """Returns shares of the tokens of `rows`, from pairs of masked ids and chosen positions.

    `chosen` is the share of all tokens and `by_class` that of each of `CLASSES`. `row_deviation` is
    the deviation of a row's share from 15 % (root mean square). `became` has the shares of chosen
    tokens that are masked, kept and replaced.
    """
    ids_BxL, lengths_B = rows()
    chosen_DxBxL = np.array([chosen for _, chosen in draws])
    masked_DxBxL = np.array([masked for masked, _ in draws])
    fraction_DxB = chosen_DxBxL.sum(axis=2) / lengths_B
    became = masked_DxBxL[chosen_DxBxL]
    was = np.broadcast_to(ids_BxL, chosen_DxBxL.shape)[chosen_DxBxL]
    return {
        "chosen": chosen_DxBxL.sum() / len(draws) / lengths_B.sum(),
        "specials": chosen_DxBxL[:, ids_BxL < 5].mean(),
        "by_class": [
            chosen_DxBxL[:, (ids_BxL >= low) & (ids_BxL < high)].mean()
            for low, high in zip(CLASSES, CLASSES[1:], strict=False)
        ],
        "row_deviation": math.sqrt(np.mean((fraction_DxB - 0.15) ** 2)),
        "became": {"mask": (became == MASK).mean(), "same": (became == was).mean()},
    }


def main() -> None:
    import torch

    tree = ast.parse(Path(sys.argv[1]).read_text())
    (distiller,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Distiller")
    distiller.body = [
        f for f in distiller.body if getattr(f, "name", "") in ("prepare_batch_mlm", "round_batch")
    ]
    scope = {"math": math, "torch": torch}
    exec(compile(ast.Module([distiller], []), sys.argv[1], "exec"), scope)
    torch.manual_seed(0)
    weights_V = np.maximum(token_counts(), 1) ** -0.7
    weights_V[:5] = 0
    self = scope["Distiller"]()
    self.fp16, self.mlm_mask_prop, self.vocab_size = False, 0.15, VOCABULARY
    self.token_probs = torch.tensor(weights_V)
    self.pred_probs = torch.tensor([0.8, 0.1, 0.1])
    self.params = SimpleNamespace(special_tok_ids={"pad_token": PAD, "mask_token": MASK})
    ids_BxL, lengths_B = (torch.tensor(x).long() for x in rows())
    draws = []
    for _ in range(DRAWS):
        masked, _, labels = self.prepare_batch_mlm((ids_BxL.clone(), lengths_B))
        draws.append((masked.numpy(), labels.numpy() >= 0))
    save_json("distilbert_masks.json", statistics(draws))


if __name__ == "__main__":
    main()
