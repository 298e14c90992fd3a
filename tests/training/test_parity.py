"""A hundred steps against models of PyTorch with their authors' optimizers.

Weights and batches are the same, and there is no dropout. PyTorch's side mostly uses optimizers
transcribed from the published programs (see benchmarks/golden/training.py). `docs/results.md`
shows the curves.
"""

import numpy as np
import pytest

from tests.golden.inputs import read_golden, section
from tests.training import parity

LOSS = 1e-3
# For each parameter: the norm of the difference divided by the norm of the change in training.
WEIGHTS = 1e-3
KEY_BIAS = 1e-3

RUNS = {
    "adamw": ("adamw", {}),
    "adamw, two microbatches": ("adamw", {"train.gradient_accumulation_steps": 2}),
    "lamb": ("lamb", {}),
    "roberta": ("roberta", {}),
    "modernbert": ("modernbert", {}),
    "eurobert": ("eurobert", {}),
    "esm": ("esm", {}),
}
# The others are slow tests.
DEFAULT_RUNS = ("adamw, two microbatches",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in DEFAULT_RUNS else [pytest.mark.slow]) for name in RUNS],
)
def test_training_matches_pytorch(name):
    run, overrides = RUNS[name]
    golden = read_golden(parity.RUNS[run].file)
    expected, initial = golden[f"{run}/losses"], section(golden, "initial")
    # The model must learn, or the comparison would mean little.
    assert expected[-10:].mean() < expected[:10].mean() - 1

    losses, weights = parity.train(run, **overrides)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=LOSS)
    final = section(golden, f"{run}/final")
    assert weights.keys() == final.keys()
    for key, value in final.items():
        has_rotary = "model.rope_theta" in parity.RUNS[run].config
        if key.endswith("attention.self.key.bias") and not has_rotary:
            # It changes no probability: its gradient, and thus its path, is only rounding error.
            assert max(np.abs(weights[key]).max(), np.abs(value).max()) < KEY_BIAS, key
            continue
        change = np.linalg.norm(value - initial[key])
        assert np.linalg.norm(weights[key] - value) < WEIGHTS * change, key
