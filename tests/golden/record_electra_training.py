"""Records a hundred steps of PyTorch's ELECTRA, and the generator's samples.

tests/training/test_electra_parity.py trains bert_jax from the same weights on the same batches with
the same samples. To record them again, in the environment of record_training.py:

    python -m tests.golden.record_electra_training

The optimizer is that of record_training.py; the warm-up multiplies the decay, as in
google-research/electra's optimization.py. The generator shares all embeddings.
"""

import numpy as np
import torch
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from tests.golden.inputs import FOLDER
from tests.golden.record_models import gather, masked_mean, under
from tests.golden.record_training import EXCLUDED, Adam
from tests.golden.training_batches import TRAINING, training_batch

SHAPE = {
    **TRAINING["model"],
    "embedding_size": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
GENERATOR = {"hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 64}
DETECTION_WEIGHT = 50.0
# With 2e-3, the losses of float32 and float64 differ by more than 1e-3.
PEAK = 5e-4


def main() -> None:
    torch.set_num_threads(1)
    initial, samples = initial_weights(), []
    losses = train(initial, torch.float32, samples)
    exact = train(initial, torch.float64, samples)
    golden = under("initial", initial) | {
        "losses": losses,
        "samples": np.stack(samples).astype(np.int32),
        "float32_error": np.abs(losses - exact).max(),
    }
    path = FOLDER / "training_electra.npz"
    np.savez_compressed(path, **golden)
    print(
        f"{path.name}: {path.stat().st_size / 1e3:.0f} kB; first and last losses {losses[[0, -1]]}"
    )
    print(f"float32's own error at the most {golden['float32_error']:.1e}")


def new_models() -> dict[str, torch.nn.Module]:
    models = {
        "discriminator": ElectraForPreTraining(ElectraConfig(**SHAPE)),
        "generator": ElectraForMaskedLM(ElectraConfig(**SHAPE | GENERATOR)),
    }
    models["generator"].electra.embeddings = models["discriminator"].electra.embeddings
    models["generator"].tie_weights()
    return models


def named_parameters(models) -> dict[str, torch.nn.Parameter]:
    """Returns all parameters; shared ones only under the discriminator's names."""
    return {
        f"{part}/{name}": parameter
        for part, model in models.items()
        for name, parameter in model.named_parameters()
        if part == "discriminator" or not name.startswith("electra.embeddings.")
    }


def initial_weights() -> dict[str, np.ndarray]:
    rng = np.random.RandomState(0)
    weights = {}
    for name, parameter in named_parameters(new_models()).items():
        value = np.full(parameter.shape, "LayerNorm.weight" in name, np.float32)
        if not any(excluded in name for excluded in EXCLUDED):
            value = (0.1 * rng.standard_normal(parameter.shape)).astype(np.float32)
        weights[name] = value
    return weights


def train(initial, precision, samples) -> np.ndarray:
    """Returns the losses before each update, [steps, 2]; draws samples if none are given."""
    models = {part: model.eval().to(precision) for part, model in new_models().items()}
    parameters = named_parameters(models)
    for name, parameter in parameters.items():
        parameter.data = torch.tensor(initial[name]).to(precision)
    models["generator"].tie_weights()
    optimizer, random = Adam(parameters, lamb=False), torch.Generator().manual_seed(0)
    drawing, losses = not samples, []
    for step in range(TRAINING["num_steps"]):
        batch = training_batch(step)
        inputs = {
            key: torch.tensor(batch[key]).long() for key in ("token_type_ids", "attention_mask")
        }
        ids = torch.tensor(batch["input_ids"]).long()
        positions = torch.tensor(batch["masked_lm_positions"]).long()
        logits = gather(models["generator"](ids, **inputs).logits, batch["masked_lm_positions"])
        if drawing:
            probs = torch.softmax(logits.detach(), -1).flatten(0, 1)
            # transformers' embedding gives the row of [PAD] no gradient.
            probs[:, 0] = 0
            drawn = torch.multinomial(probs, 1, generator=random)
            samples.append(drawn.reshape(positions.shape).numpy())
        chosen = np.argwhere(batch["masked_lm_weights"] > 0)
        corrupted, labels = ids.clone(), torch.zeros(ids.shape, dtype=precision)
        for row, at in chosen:
            corrupted[row, positions[row, at]] = int(samples[step][row, at])
            is_other = samples[step][row, at] != batch["masked_lm_ids"][row, at]
            labels[row, positions[row, at]] = float(is_other)
        real = inputs["attention_mask"].to(precision)
        detected = models["discriminator"](corrupted, **inputs).logits
        each = torch.nn.functional.binary_cross_entropy_with_logits(
            detected, labels, reduction="none"
        )
        detection, masked = (each * real).sum() / real.sum(), masked_mean(logits, batch)
        for parameter in parameters.values():
            parameter.grad = None
        (masked + DETECTION_WEIGHT * detection).backward()
        losses.append([float(masked.detach()), float(detection.detach())])
        warmup = min(1.0, step / TRAINING["warmup_steps"])
        optimizer.update(PEAK * warmup * (1 - step / TRAINING["num_steps"]))
    return np.array(losses)


if __name__ == "__main__":
    main()
