"""Records the outputs and gradients of a PyTorch BERT with SpanBERT's boundary head.

    python -m benchmarks.golden.spanbert

tests/models/test_parity.py compares bert_jax with them. `transformers` has no such head, so it is
implemented here from the paper (Joshi et al. 2020, section 3.2) and the shapes in the authors'
program.
"""

import json

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM

from benchmarks.golden.models import encode, gather, masked_mean, record, with_gradients
from tests.golden.inputs import read_golden

POSITIONS, POSITION_SIZE = 15, 200


class Boundary(torch.nn.Module):
    """Predicts a token from the states on both sides of its span and its place in the span."""

    def __init__(self, width: int, vocab_size: int):
        super().__init__()
        self.position_embeddings = torch.nn.Embedding(POSITIONS, POSITION_SIZE)
        self.first = torch.nn.Linear(2 * width + POSITION_SIZE, width)
        self.first_layer_norm = torch.nn.LayerNorm(width, eps=1e-12)
        self.second = torch.nn.Linear(width, width)
        self.second_layer_norm = torch.nn.LayerNorm(width, eps=1e-12)
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
    return with_gradients(model, outputs)


if __name__ == "__main__":
    torch.set_num_threads(2)
    golden = read_golden("model_spanbert")
    config = BertConfig(**json.loads(str(golden["config"])), attn_implementation="eager")
    record("model_spanbert", golden, SpanBert(config).eval(), run)
