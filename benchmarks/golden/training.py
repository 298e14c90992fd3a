"""Records a hundred steps of PyTorch's BERT with two optimizers, and of models of its family.

    python -m benchmarks.golden.training [FILE ...]

tests/training/test_parity.py trains bert_jax from the same weights on the same batches. The models
are transformers'. The optimizers and the schedules are transcribed here from google-research/bert's
optimization.py, You et al. 2020 (arXiv:1904.00962), fairseq's FairseqAdam and
PolynomialDecayLRSchedule, and Wortsman et al. 2023 (arXiv:2304.13013), and share nothing with
bert_jax. That of EuroBERT and ESM-2 is PyTorch's own AdamW, and their models are those of
transformers 5.24.0; a file of theirs that is missing begins with weights drawn by transformers.
Each run is repeated in float64: `float32_error` is the difference of the recorded losses from the
float64 losses.
"""

import functools
import math
import sys

import numpy as np
import torch

from benchmarks.golden.models import load, make_model, pretraining
from benchmarks.golden.recipe import save_arrays, under
from tests.golden.inputs import FOLDER, read_golden, section
from tests.golden.training_batches import (
    ESM,
    EUROBERT,
    MODERNBERT,
    TRAINING,
    roberta_batch,
    training_batch,
)

# By name, as in optimization.py's exclude_from_weight_decay; other families write "norm.".
EXCLUDED = ("LayerNorm", "norm.", "norm_after.", "bias")
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FILES = {
    "training": ("adamw", "lamb"),
    "training_roberta": ("roberta",),
    "training_modernbert": ("modernbert",),
    "training_eurobert": ("eurobert",),
    "training_esm": ("esm",),
}
# What these have beside the shape of BERT.
NEWER = {"eurobert": EUROBERT, "esm": ESM}


def record(file: str) -> None:
    golden = {}
    if (FOLDER / f"{file}.npz").exists():
        golden = read_golden(file)
    for name in FILES[file]:
        if not golden:
            torch.manual_seed(0)
            weights = new_model(name).named_parameters()
            golden = under("initial", {key: p.detach().numpy().copy() for key, p in weights})
        losses, weights = train(golden, name, torch.float32)
        exact, _ = train(golden, name, torch.float64)
        golden |= {f"{name}/losses": losses, **under(f"{name}/final", weights)}
        golden[f"{name}/float32_error"] = np.abs(losses - exact).max()
        print(
            f"{name}: loss {losses[0]:.4f} to {losses[-1]:.4f}, float32's own error at the most "
            f"{golden[f'{name}/float32_error']:.1e}"
        )
    save_arrays(file, golden)


def new_model(name: str) -> torch.nn.Module:
    if name == "modernbert":
        # Its dropout is 0 by default.
        return make_model(TRAINING["model"] | MODERNBERT | {"model_type": name, "pad_token_id": 0})
    if name in NEWER:
        return make_model(TRAINING["model"] | NEWER[name] | {"model_type": name})
    shape = TRAINING["model"] | NO_DROPOUT
    if name == "roberta":
        shape |= {"model_type": name, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
        shape["max_position_embeddings"] += 2
    return make_model(shape)


def train(golden, name, precision) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the loss before each update, and the weights after the last."""
    model = new_model(name)
    load(model, section(golden, "initial"), precision)
    parameters = dict(model.named_parameters())
    optimizers = {
        "adamw": Adam,
        "lamb": functools.partial(Adam, lamb=True),
        "roberta": FairseqAdam,
        "modernbert": StableAdamW,
        "eurobert": functools.partial(AdamW, beta2=0.95, eps=1e-5, decay=0.1),
        "esm": functools.partial(AdamW, beta2=0.98, eps=1e-8, decay=0.01),
    }
    optimizer = optimizers[name](parameters)
    make_batch = roberta_batch if name == "roberta" else training_batch
    losses = []
    for step in range(TRAINING["num_steps"]):
        losses.append(pretraining(model, make_batch(step))["loss"])
        optimizer.update(learning_rate(step, name))
    # ESM-2's head for contacts is not trained.
    trained = {key: p for key, p in parameters.items() if p.grad is not None}
    return np.array(losses), {key: p.detach().numpy() for key, p in trained.items()}


def learning_rate(step: int, name: str) -> float:
    """Returns create_optimizer's rate (optimization.py): warm-up, decay of power 1 from step 0.

    RoBERTa's decay begins after the warm-up; ModernBERT has none.
    """
    warmup, end = TRAINING["warmup_steps"], TRAINING["num_steps"]
    peak = TRAINING["peak_learning_rate"][name]
    if step < warmup:
        return peak * step / warmup
    if name == "roberta":
        return peak * (end - step) / (end - warmup)
    if name == "modernbert":
        return peak
    return peak * (1 - step / end)


class Moments:
    """The parameters and the two moments of an optimizer."""

    def __init__(self, parameters: dict[str, torch.Tensor]):
        self.parameters = parameters
        self.steps = 0
        self.m = {name: torch.zeros_like(p.data) for name, p in parameters.items()}
        self.v = {name: torch.zeros_like(p.data) for name, p in parameters.items()}


class Adam(Moments):
    """AdamWeightDecayOptimizer of optimization.py; with `lamb`, algorithm 2 of You et al.

    LAMB divides the moments by 1 - beta^t; BERT's Adam does not. Both add the decay to the update.
    LAMB then scales the update of each tensor to the norm of the parameter, except for tensors that
    are not decayed and where a norm is 0.
    """

    def __init__(self, parameters: dict[str, torch.Tensor], lamb: bool = False):
        super().__init__(parameters)
        self.lamb = lamb

    @torch.no_grad()
    def update(self, learning_rate: float) -> None:
        self.steps += 1
        norm = torch.sqrt(sum((p.grad**2).sum() for p in self.parameters.values()))
        clip = 1.0 / max(float(norm), 1.0)
        for name, p in self.parameters.items():
            gradient = p.grad * clip
            self.m[name] = 0.9 * self.m[name] + 0.1 * gradient
            self.v[name] = 0.999 * self.v[name] + 0.001 * gradient * gradient
            m, v = self.m[name], self.v[name]
            if self.lamb:
                m, v = m / (1 - 0.9**self.steps), v / (1 - 0.999**self.steps)
            update = m / (torch.sqrt(v) + 1e-6)
            if not any(excluded in name for excluded in EXCLUDED):
                update = update + 0.01 * p
                if self.lamb:
                    of_parameter, of_update = float(p.norm()), float(update.norm())
                    if of_parameter > 0 and of_update > 0:
                        update = update * (of_parameter / of_update)
            p.sub_(learning_rate * update)


class AdamW(Moments):
    """torch.optim.AdamW, which decays no tensor of a LayerNorm and no bias, after clipping."""

    def __init__(self, parameters: dict[str, torch.Tensor], beta2: float, eps: float, decay: float):
        super().__init__(parameters)
        kinds: dict[bool, list[torch.Tensor]] = {False: [], True: []}
        for name, p in parameters.items():
            kinds[any(excluded in name for excluded in EXCLUDED)].append(p)
        groups = [
            {"params": kinds[False], "weight_decay": decay},
            {"params": kinds[True], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, beta2), eps=eps)

    def update(self, learning_rate: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()


class FairseqAdam(Moments):
    """Adam as in fairseq's adam.py: eps is added before the second moment is corrected.

    As in RoBERTa, every parameter decays and the gradient is not clipped.
    """

    @torch.no_grad()
    def update(self, learning_rate: float) -> None:
        self.steps += 1
        size = learning_rate * math.sqrt(1 - 0.98**self.steps) / (1 - 0.9**self.steps)
        for name, p in self.parameters.items():
            self.m[name] = 0.9 * self.m[name] + 0.1 * p.grad
            self.v[name] = 0.98 * self.v[name] + 0.02 * p.grad * p.grad
            p.sub_(learning_rate * 0.01 * p)
            p.sub_(size * self.m[name] / (torch.sqrt(self.v[name]) + 1e-6))


class StableAdamW(Moments):
    """Algorithm 2 of Wortsman et al., with ModernBERT's values.

    The rate of each tensor is divided by max(1, RMS of g / sqrt(v)), also for the decay. As in
    ModernBERT, tensors of a LayerNorm and biases do not decay.
    """

    @torch.no_grad()
    def update(self, learning_rate: float) -> None:
        self.steps += 1
        # The paper puts the correction of the moments into their betas.
        beta1, beta2 = (
            beta * (1 - beta ** (self.steps - 1)) / (1 - beta**self.steps) for beta in (0.9, 0.98)
        )
        for name, p in self.parameters.items():
            self.m[name] = beta1 * self.m[name] + (1 - beta1) * p.grad
            self.v[name] = beta2 * self.v[name] + (1 - beta2) * p.grad * p.grad
            square = p.grad * p.grad / torch.clamp(self.v[name], min=1e-6**2)
            rate = learning_rate / max(1.0, math.sqrt(float(square.mean())))
            if not any(excluded in name for excluded in EXCLUDED):
                p.sub_(rate * 0.0125 * p)
            p.sub_(rate * self.m[name] / (torch.sqrt(self.v[name]) + 1e-6))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for file in sys.argv[1:] or FILES:
        record(file)
