"""The forward pass of BERT's pre-training in plain numpy, float64, one sequence at a time.

It is written from the paper and google-research/bert's modeling.py and shares nothing with
bert_jax. `params` is bert_jax's tree without scan, as numpy arrays.
"""

import math

import numpy as np

_erf = np.vectorize(math.erf)


def gelu(x):
    return x * 0.5 * (1.0 + _erf(x / math.sqrt(2.0)))


def gelu_new(x):
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def relu(x):
    return np.where(x > 0, x, 0.0)


def layer_norm(x, p, eps):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * p["scale"] + p["bias"]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(x, mask, p):
    num_heads, depth = p["query_bias"].shape
    output = np.zeros_like(x) + p["output_bias"]
    for head in range(num_heads):
        q, k, v = (
            x @ p[f"{name}_kernel"][:, head] + p[f"{name}_bias"][head]
            for name in ("query", "key", "value")
        )
        scores = q @ k.T / math.sqrt(depth)
        scores[:, mask == 0] = -np.inf
        output = output + softmax(scores) @ v @ p["output_kernel"][head]
    return output


def sequence_logits(params, ids, segments, mask, positions, *, act, eps):
    """Returns mlm_logits [M, V] and nsp_logits [2] for one sequence."""
    bert, length = params["bert"], len(ids)
    tables = bert["embeddings"]
    x = np.stack(
        [
            tables["word_embeddings"][ids[i]]
            + tables["position_embeddings"][i]
            + tables["token_type_embeddings"][segments[i]]
            for i in range(length)
        ]
    )
    x = layer_norm(x, tables["layer_norm"], eps)
    for i in range(len(bert["encoder"])):
        p = bert["encoder"][f"layer_{i}"]
        x = layer_norm(x + attention(x, mask, p["attention"]), p["attention_layer_norm"], eps)
        inner = act(x @ p["intermediate"]["kernel"] + p["intermediate"]["bias"])
        outer = inner @ p["output"]["kernel"] + p["output"]["bias"]
        x = layer_norm(x + outer, p["output_layer_norm"], eps)
    pooler = bert["pooler"]["dense"]
    pooled = np.tanh(x[0] @ pooler["kernel"] + pooler["bias"])
    nsp = pooled @ params["nsp"]["dense"]["kernel"] + params["nsp"]["dense"]["bias"]
    head = params["mlm"]
    hidden = act(x[positions] @ head["transform"]["kernel"] + head["transform"]["bias"])
    hidden = layer_norm(hidden, head["layer_norm"], eps)
    return hidden @ tables["word_embeddings"].T + head["output_bias"], nsp
