"""Records the outputs and gradients of a PyTorch BERT with SpanBERT's boundary head.

tests/models/test_parity.py compares bert_jax with them; tests/golden/record_models.py describes the
environment. `transformers` has no such head, so it is implemented here from the paper (Joshi et al.
2020, section 3.2) and the shapes in the authors' program:

    python -m tests.golden.record_spanbert
"""

import json

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM

from tests.golden.inputs import random_batch
from tests.golden.record_models import (
    encode,
    float32_errors,
    gather,
    gradients,
    masked_mean,
    randomize,
    save,
    under,
)

POSITIONS, POSITION_SIZE = 15, 200
# No two sizes are equal.
SHAPE = dict(
    vocab_size=67,
    hidden_size=30,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=44,
    max_position_embeddings=29,
    type_vocab_size=2,
    hidden_act="gelu",
    layer_norm_eps=1e-12,
)


class Boundary(torch.nn.Module):
    """Predicts a token from the states on both sides of its span and its place in the span."""

    def __init__(self, width: int, vocab_size: int):
        super().__init__()
        self.position_embeddings = torch.nn.Embedding(POSITIONS, POSITION_SIZE)
        self.first = torch.nn.Linear(2 * width + POSITION_SIZE, width)
        self.first_layer_norm = torch.nn.LayerNorm(width, eps=SHAPE["layer_norm_eps"])
        self.second = torch.nn.Linear(width, width)
        self.second_layer_norm = torch.nn.LayerNorm(width, eps=SHAPE["layer_norm_eps"])
        self.bias = torch.nn.Parameter(torch.zeros(vocab_size))

    def forward(self, left, right, offsets, table):
        x = torch.cat([left, right, self.position_embeddings(offsets)], dim=-1)
        x = self.first_layer_norm(torch.nn.functional.gelu(self.first(x)))
        x = self.second_layer_norm(torch.nn.functional.gelu(self.second(x)))
        return x @ table.T + self.bias


class SpanBert(BertForMaskedLM):
    def __init__(self, config):
        super().__init__(config)
        self.boundary = Boundary(config.hidden_size, config.vocab_size)


def boundary_batch() -> dict[str, np.ndarray]:
    """Returns a random batch with boundary fields; some targets have no boundary."""
    batch = random_batch(7, batch_size=4, length=23, predictions=8, vocab_size=67)
    del batch["next_sentence_labels"]
    rng = np.random.RandomState(8)
    size, real_B = batch["masked_lm_positions"].shape, batch["attention_mask"].sum(axis=1)
    has_BxM = (rng.random_sample(size) < 0.7) * batch["masked_lm_weights"]
    has_BxM[1] = 0
    ends = [(rng.random_sample(size) * real_B[:, None]).astype(int) for _ in range(2)]
    columns = [*ends, rng.randint(0, POSITIONS, size)]
    names = ("span_left_positions", "span_right_positions", "span_offsets")
    for name, values in zip(names, columns, strict=True):
        batch[name] = (values * has_BxM).astype(np.int32)
    return batch | {"span_weights": has_BxM.astype(np.float32)}


def run(model: SpanBert, batch: dict) -> dict[str, np.ndarray]:
    model.zero_grad()
    hidden_states, _ = encode(model.bert, batch)
    last = hidden_states[-1]
    mlm_logits = model.cls(gather(last, batch["masked_lm_positions"]))
    sbo_logits = model.boundary(
        gather(last, batch["span_left_positions"]),
        gather(last, batch["span_right_positions"]),
        torch.tensor(batch["span_offsets"]).long(),
        model.bert.embeddings.word_embeddings.weight,
    )
    mlm_loss = masked_mean(mlm_logits, batch)
    sbo_loss = masked_mean(sbo_logits, batch | {"masked_lm_weights": batch["span_weights"]})
    outputs = {
        "hidden_states": torch.stack(hidden_states),
        "mlm_logits": mlm_logits,
        "sbo_logits": sbo_logits,
        "mlm_loss": mlm_loss,
        "sbo_loss": sbo_loss,
        "loss": mlm_loss + sbo_loss,
    }
    outputs["loss"].backward()
    return {key: value.detach().numpy() for key, value in outputs.items()} | under(
        "gradients", gradients(model, "")
    )


def main() -> None:
    torch.set_num_threads(2)
    model = SpanBert(BertConfig(**SHAPE, attn_implementation="eager")).eval()
    randomize(model, seed=20)
    batch = boundary_batch()
    both = [run(model, batch), run(model.double(), batch)]
    model.float()
    values = {
        "config": np.array(json.dumps(SHAPE)),
        **under("weights", {k: p.detach().numpy() for k, p in model.named_parameters()}),
        **under("batch", batch),
        **both[0],
        **under("float32_error", float32_errors(*both)),
    }
    save("model_spanbert", values)


if __name__ == "__main__":
    main()
