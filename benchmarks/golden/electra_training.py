"""Records a hundred steps of PyTorch's ELECTRA, with the generator's samples of the file.

    python -m benchmarks.golden.electra_training

tests/training/test_electra_parity.py trains bert_jax from the same weights on the same batches with
the same samples. The optimizer is that of training.py; the warm-up multiplies the decay, as in
google-research/electra's optimization.py. The generator shares all embeddings.
"""

import numpy as np
import torch

from benchmarks.golden.models import gather, load, make_model, masked_mean
from benchmarks.golden.recipe import save_arrays
from benchmarks.golden.training import NO_DROPOUT, Adam
from tests.golden.inputs import read_golden, section
from tests.golden.training_batches import TRAINING, training_batch

SHAPE = TRAINING["model"] | NO_DROPOUT | {"model_type": "electra", "embedding_size": 24}
GENERATOR = {"hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 64}
DETECTION_WEIGHT = 50.0
# With 2e-3, the losses of float32 and float64 differ by more than 1e-3.
PEAK = 5e-4


class Electra(torch.nn.Module):
    """Both networks. All embeddings are the discriminator's, and named so."""

    def __init__(self):
        super().__init__()
        self.discriminator = make_model(SHAPE)
        self.generator = make_model(SHAPE | GENERATOR, "ElectraForMaskedLM")
        self.generator.electra.embeddings = self.discriminator.electra.embeddings
        self.tie_weights()

    def tie_weights(self) -> None:
        self.generator.tie_weights()


def train(golden: dict[str, np.ndarray], precision: torch.dtype) -> np.ndarray:
    """Returns the losses before each update, [steps, 2]."""
    models, losses = Electra(), []
    initial = section(golden, "initial")
    load(models, {key.replace("/", ".", 1): v for key, v in initial.items()}, precision)
    parameters = dict(models.named_parameters())
    optimizer = Adam(parameters, lamb=False)
    for step, sampled in enumerate(golden["samples"]):
        batch = training_batch(step)
        inputs = {
            key: torch.tensor(batch[key]).long() for key in ("token_type_ids", "attention_mask")
        }
        ids = torch.tensor(batch["input_ids"]).long()
        positions = torch.tensor(batch["masked_lm_positions"]).long()
        logits = gather(models.generator(ids, **inputs).logits, batch["masked_lm_positions"])
        chosen = np.argwhere(batch["masked_lm_weights"] > 0)
        corrupted, labels = ids.clone(), torch.zeros(ids.shape, dtype=precision)
        for row, at in chosen:
            corrupted[row, positions[row, at]] = int(sampled[row, at])
            is_other = sampled[row, at] != batch["masked_lm_ids"][row, at]
            labels[row, positions[row, at]] = float(is_other)
        real = inputs["attention_mask"].to(precision)
        detected = models.discriminator(corrupted, **inputs).logits
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
    torch.set_num_threads(1)
    golden = read_golden("training_electra")
    golden["losses"] = train(golden, torch.float32)
    error = np.abs(golden["losses"] - train(golden, torch.float64)).max()
    print(f"losses {golden['losses'][[0, -1]]}, float32's own error at the most {error:.1e}")
    save_arrays("training_electra", golden | {"float32_error": error})
