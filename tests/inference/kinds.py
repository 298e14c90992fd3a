"""Small models with sparse vectors, and with several vectors for each text."""

import numpy as np

from bert_jax.interop.embedding import LIBRARY_DEFAULTS, Embedding
from bert_jax.interop.pretrained import Pretrained
from tests.interop.small_bert import make_pretrained

PROMPTS = {"query": "the ", "document": "b "}


def make_sparse(prompts=None, **embedding) -> Pretrained:
    made = without_biases(make_pretrained(terms=("masked_lm",)))
    made.weights["mlm/output_bias"] = np.full_like(made.weights["mlm/output_bias"], -3)
    if embedding.get("static_queries"):
        # A weight may be 0.
        weights = np.arange(made.model["vocab_size"], dtype=np.float32) / 8
        made.weights["query_weights"] = weights
    options = {
        "kind": "sparse",
        "pooling": "max",
        "similarity": "dot",
        "library": _library(prompts),
    }
    made.embedding = Embedding(**(options | embedding))
    return made


def make_multi_vector(prompts=None, **embedding) -> Pretrained:
    made = without_biases(make_pretrained())
    rng = np.random.default_rng(1)
    made.weights["projection/kernel"] = rng.standard_normal((12, 8)).astype(np.float32)
    options = {
        "kind": "multi_vector",
        "pooling": "tokens",
        "similarity": "maxsim",
        "query_length": 10,
        "expansion": "masked",
        "skip_words": (".", ";"),
        "library": _library(prompts),
    }
    made.embedding = Embedding(**(options | embedding))
    return made


def _library(prompts):
    return {**LIBRARY_DEFAULTS, "prompts": prompts or {}}


def without_biases(made: Pretrained) -> Pretrained:
    """Without biases, the vectors of texts differ much."""
    for name, weights in made.weights.items():
        if name.endswith(("bias", "scale")):
            made.weights[name] = np.full_like(weights, name.endswith("scale"))
    return made
