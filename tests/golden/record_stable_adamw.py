"""Records ten steps of torch-optimi's StableAdamW, which ModernBERT's own version is made from.

tests/training/test_optimizer.py takes the same steps. To record them again (bert_jax does not
require these packages):

    pip install torch==2.13.0 torch-optimi==0.3.3
    python -m tests.golden.record_stable_adamw
"""

from pathlib import Path

import numpy as np
import torch
from optimi import StableAdamW

FILE = Path(__file__).parent / "stable_adamw.npz"
SHAPES = {
    "embeddings/word_embeddings": (7, 4),
    "embeddings/layer_norm/scale": (4,),
    "layer_0/query_kernel": (4, 2, 2),
    "layer_0/query_bias": (2, 2),
    "transform/kernel": (4, 4),
}
DECAYED = ("embeddings/word_embeddings", "layer_0/query_kernel", "transform/kernel")
# Sudden large gradients are what StableAdamW limits.
SCALES = (0.02, 1.0, 0.05, 3.0, 0.01) * 2


def main() -> None:
    rng = np.random.RandomState(0)
    start = {name: rng.randn(*shape).astype(np.float32) for name, shape in SHAPES.items()}
    params = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in start.items()}
    groups = [
        {"params": [params[name] for name in DECAYED], "weight_decay": 0.3},
        {"params": [params[name] for name in SHAPES if name not in DECAYED], "weight_decay": 0.0},
    ]
    optimizer = StableAdamW(groups, lr=1.0, betas=(0.9, 0.98), eps=1e-6)
    golden = {f"start/{name}": value for name, value in start.items()}
    for step, scale in enumerate(SCALES):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 + step)
        for name, shape in SHAPES.items():
            gradient = (scale * rng.randn(*shape)).astype(np.float32)
            golden[f"gradient_{step}/{name}"] = gradient
            params[name].grad = torch.tensor(gradient)
        optimizer.step()
        if step in (0, 3, 9):
            for name, param in params.items():
                golden[f"step_{step}/{name}"] = param.detach().numpy().copy()
    np.savez_compressed(FILE, **golden)


if __name__ == "__main__":
    main()
