"""The settings and batches of the training runs that PyTorch and bert_jax both make."""

import numpy as np

from tests.golden.inputs import random_batch

# A small BERT, and rates that change the loss a lot in a hundred steps.
TRAINING = {
    "model": dict(
        vocab_size=101,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=24,
    ),
    "num_steps": 100,
    "batch_size": 16,
    "length": 20,
    "predictions": 4,
    "warmup_steps": 10,
    "peak_learning_rate": {
        "adamw": 2e-3,
        "lamb": 3e-2,
        "roberta": 5e-3,
        "modernbert": 5e-3,
        "eurobert": 5e-3,
        "esm": 5e-3,
    },
}
# What a ModernBERT has beside the shape above: layers 0 and 3 see the whole row, layers 1 and 2
# four tokens to either side. The names are those of transformers.
MODERNBERT = dict(
    num_hidden_layers=4,
    intermediate_size=40,
    local_attention=8,
    global_attn_every_n_layers=3,
    global_rope_theta=700.0,
    local_rope_theta=30.0,
)
# The same of EuroBERT, with two heads for each of keys and values, and of ESM-2.
EUROBERT = dict(
    num_key_value_heads=2,
    rope_parameters=dict(rope_type="default", rope_theta=700.0),
    initializer_range=0.1,
    pad_token_id=0,
    bos_token_id=2,
    eos_token_id=0,
    mask_token_id=1,
)
ESM = dict(
    position_embedding_type="rotary",
    token_dropout=True,
    emb_layer_norm_before=False,
    layer_norm_eps=1e-5,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.1,
    pad_token_id=0,
    mask_token_id=1,
)


def training_batch(step: int) -> dict[str, np.ndarray]:
    """Returns a batch from which a model can learn: rows that count up, in two segments.

    Tokens increase by 1 or 2 from position to position. The label is whether the second segment
    continues where the first ends.
    """
    t, vocab_size, mask = TRAINING, TRAINING["model"]["vocab_size"], 1
    batch = random_batch(
        1000 + step,
        batch_size=t["batch_size"],
        length=t["length"],
        predictions=t["predictions"],
        vocab_size=vocab_size,
    )
    rng = np.random.RandomState(2000 + step)
    size = (t["batch_size"], 1)
    second_BxL = np.arange(t["length"]) >= t["length"] // 2
    counts_BxL = rng.randint(0, 5, size) + np.arange(t["length"]) * rng.randint(1, 3, size)
    counts_BxL = counts_BxL + second_BxL * batch["next_sentence_labels"][:, None] * 37
    ids_BxL = (2 + counts_BxL % (vocab_size - 2)) * batch["attention_mask"]
    rows = np.arange(t["batch_size"])[:, None]
    positions, real = batch["masked_lm_positions"], batch["masked_lm_weights"] > 0
    labels_BxM = ids_BxL[rows, positions] * real
    ids_BxL[np.broadcast_to(rows, real.shape)[real], positions[real]] = mask
    return batch | {
        "input_ids": ids_BxL.astype(np.int32),
        "token_type_ids": second_BxL * batch["attention_mask"],
        "masked_lm_ids": labels_BxM.astype(np.int32),
    }


def roberta_batch(step: int) -> dict[str, np.ndarray]:
    """Returns the same batch without segments; the id of padding is 1, that of the mask 0."""
    batch = training_batch(step)
    ids_BxL = batch["input_ids"]
    return batch | {
        "input_ids": np.where(ids_BxL < 2, 1 - ids_BxL, ids_BxL),
        "token_type_ids": np.zeros_like(ids_BxL),
    }
