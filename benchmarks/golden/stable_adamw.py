"""Records ten steps of torch-optimi's StableAdamW, which ModernBERT's own version is made from.

    pip install torch-optimi==0.3.3
    python -m benchmarks.golden.stable_adamw

tests/training/test_optimizer.py takes the same steps. The gradients are sometimes suddenly large,
which is what StableAdamW limits.
"""

import torch
from optimi import StableAdamW

from benchmarks.golden.recipe import save_arrays, under
from tests.golden.inputs import read_golden, section

DECAYED = ("embeddings/word_embeddings", "layer_0/query_kernel", "transform/kernel")


def main() -> None:
    golden = read_golden("stable_adamw")
    start = section(golden, "start")
    params = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in start.items()}
    groups = [
        {"params": [params[name] for name in DECAYED], "weight_decay": 0.3},
        {"params": [params[name] for name in start if name not in DECAYED], "weight_decay": 0.0},
    ]
    optimizer = StableAdamW(groups, lr=1.0, betas=(0.9, 0.98), eps=1e-6)
    for step in range(10):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 + step)
        for name, gradient in section(golden, f"gradient_{step}").items():
            params[name].grad = torch.tensor(gradient)
        optimizer.step()
        if step in (0, 3, 9):
            now = {name: param.detach().numpy().copy() for name, param in params.items()}
            golden |= under(f"step_{step}", now)
    save_arrays("stable_adamw", golden)


if __name__ == "__main__":
    main()
