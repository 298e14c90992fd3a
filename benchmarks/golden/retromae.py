"""Records the outputs and gradients of a PyTorch BERT with RetroMAE's decoder.

    python -m benchmarks.golden.retromae

tests/models/test_parity.py compares bert_jax with them. `transformers` has no such decoder, so it
is implemented here from the paper (Xiao et al. 2022, section 3.2) around a layer of its BERT. The
sets of tokens that each position sees are drawn here. Shape and rows are those of model_gelu.npz.
"""

import json

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM
from transformers.models.bert.modeling_bert import BertLayer

from benchmarks.golden.models import (
    encode,
    gather,
    load,
    masked_mean,
    randomize,
    record,
    with_gradients,
)
from benchmarks.golden.recipe import under
from tests.golden.inputs import read_golden, section


class RetroMae(BertForMaskedLM):
    def __init__(self, config):
        super().__init__(config)
        self.decoder = BertLayer(config)


def run(model: RetroMae, batch: dict) -> dict[str, np.ndarray]:
    model.zero_grad()
    hidden_states, _ = encode(model.bert, batch)
    mlm_logits = model.cls(gather(hidden_states[-1], batch["masked_lm_positions"]))
    ids, types = (torch.tensor(batch[key]).long() for key in ("original_ids", "token_type_ids"))
    sentence = hidden_states[-1][:, :1]
    embedded = model.bert.embeddings(ids, types)
    positions = model.bert.embeddings.position_embeddings.weight[: ids.shape[1]]
    query = positions + sentence
    states = torch.cat([sentence, embedded[:, 1:]], dim=1)
    decoded = model.cls(layer(model.decoder, query, states, torch.tensor(batch["visible"])))
    losses = -torch.log_softmax(decoded, -1).gather(2, ids[:, :, None])[:, :, 0]
    weights = torch.tensor(text_weights(batch)).to(losses.dtype)
    mlm_loss = masked_mean(mlm_logits, batch)
    retromae_loss = (weights * losses).sum() / weights.sum()
    outputs = {
        "hidden_states": torch.stack(hidden_states),
        "mlm_logits": mlm_logits,
        "retromae_logits": decoded,
        "mlm_loss": mlm_loss,
        "retromae_loss": retromae_loss,
        "loss": mlm_loss + retromae_loss,
    }
    return with_gradients(model, outputs)


def layer(block: BertLayer, query, states, visible):
    """Applies a block whose keys and values are not the queries."""
    attention = block.attention.self
    batch, length, width = query.shape
    shape = (batch, length, attention.num_attention_heads, attention.attention_head_size)
    q, k, v = (
        project(x).view(shape).transpose(1, 2)
        for project, x in (
            (attention.query, query),
            (attention.key, states),
            (attention.value, states),
        )
    )
    scores = q @ k.transpose(2, 3) / attention.attention_head_size**0.5
    scores = scores.masked_fill(~visible[:, None], torch.finfo(torch.float32).min)
    context = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
    attended = block.attention.output(context, query)
    return block.output(block.intermediate(attended), attended)


def text_weights(batch: dict) -> np.ndarray:
    """Returns 1 for each token but the first, the last and padding, 0 for these."""
    weights = batch["attention_mask"].astype(np.float32)
    weights[np.arange(len(weights)), batch["attention_mask"].sum(axis=1) - 1] = 0
    weights[:, 0] = 0
    return weights


def visible_sets(batch: dict, rng: np.random.RandomState) -> np.ndarray:
    """Draws which tokens each position sees, bool [B, L, L]."""
    text = text_weights(batch)[:, None] > 0
    hidden = (rng.rand(*text.shape[:1], text.shape[2], text.shape[2]) < 0.5) & text
    visible = ~hidden & (batch["attention_mask"][:, None] > 0)
    return visible & ~np.eye(text.shape[2], dtype=bool)


def original(batch: dict) -> np.ndarray:
    ids = batch["input_ids"].copy()
    rows, columns = np.nonzero(batch["masked_lm_weights"])
    ids[rows, batch["masked_lm_positions"][rows, columns]] = batch["masked_lm_ids"][rows, columns]
    return ids


if __name__ == "__main__":
    torch.set_num_threads(2)
    golden = read_golden("model_gelu")
    config = BertConfig(**json.loads(str(golden["config"])), attn_implementation="eager")
    model = RetroMae(config).eval()
    randomize(model, seed=51)
    weights = {key: parameter.detach().numpy() for key, parameter in model.named_parameters()}
    batch = section(golden, "batch")
    del batch["next_sentence_labels"]
    batch |= {"original_ids": original(batch)}
    batch |= {"visible": visible_sets(batch, np.random.RandomState(52))}
    load(model, weights)
    inputs = {"config": golden["config"], **under("weights", weights), **under("batch", batch)}
    record("model_retromae", inputs, model, run)
